import asyncio
import itertools
import ssl
import subprocess
from pathlib import Path

import pytest

import turnstonedb
from serving import serving
from turnstonedb import _server as server

NAMESPACE = "tenant é"


def test_a_server_on_a_port_asks_for_a_token_and_proves_with_tls_who_it_is(tmp_path: Path) -> None:
    root = subprocess.run(["go", "env", "GOROOT"], check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(["go", "run", f"{root}/src/crypto/tls/generate_cert.go", "--host", "localhost"], check=True, cwd=tmp_path, capture_output=True)
    made = subprocess.run([server.command(), "token", "read", "write", "--namespace", NAMESPACE, "--name", "w"], check=True, capture_output=True, text=True)
    token, line = made.stdout.splitlines()
    (tmp_path / "tokens").write_text(line + "\n", encoding="utf-8")
    flags = ["--tokens", str(tmp_path / "tokens"), "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with serving("mem:", "127.0.0.1:0", *flags) as listens:
        address = f"https://localhost:{listens.split()[-1].rpartition(':')[2]}"
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        content = b"attached" * 700_000
        with turnstonedb.Client(address, token=token, namespace=NAMESPACE, verify=trusted) as db:
            session, _ = db.create("s")
            a = session.put_attachment(content)
            session.commit([turnstonedb.NewNode("k", "p", attachments=[a])])
            assert b"".join(session.read_attachment(a.id)) == content
            assert [e.revision for e in itertools.islice(session.watch(), 1)] == [1]

        async def awaited() -> None:
            async with turnstonedb.AsyncClient(address, token=token, namespace=NAMESPACE, verify=trusted) as db:
                session = await db.session("s")
                assert b"".join([chunk async for chunk in session.read_attachment(a.id)]) == content
                async for e in session.watch():
                    assert e.revision == 1
                    break

        asyncio.run(awaited())

        def refused(token: str, namespace: str, verify: bool | ssl.SSLContext) -> list[turnstonedb.Error]:
            """Returns what both clients raise."""
            found = []
            with turnstonedb.Client(address, token=token, namespace=namespace, verify=verify, patience=0.1) as db, pytest.raises(turnstonedb.Error) as e:
                db.list()
            found.append(e.value)

            async def awaited() -> None:
                async with turnstonedb.AsyncClient(address, token=token, namespace=namespace, verify=verify, patience=0.1) as db:
                    with pytest.raises(turnstonedb.Error) as e:
                        await db.list()
                    found.append(e.value)

            asyncio.run(awaited())
            return found

        for e in refused("", NAMESPACE, trusted):
            assert e.kind == "token"
        for e in refused(token + "x", NAMESPACE, trusted):
            assert isinstance(e, turnstonedb.UnauthorizedError)
        for e in refused(token, "", trusted):  # the token is of another namespace
            assert e.kind == "scope"
        for e in refused(token, NAMESPACE, True):  # nobody vouches for the certificate
            assert isinstance(e, turnstonedb.UnavailableError)
            assert "certificate" in str(e).lower()
        with turnstonedb.Client(address, token=token, namespace=NAMESPACE, verify=False) as db:  # and whoever does not ask gets in
            assert [s.id for s in db.list().sessions] == ["s"]

"""The examples of the READMEs run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "python/README.md"])
def test_the_first_example_of_a_readme_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)
    assert block
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # The turn is stored once.
        found: dict[str, object] = {}
        exec(block[1], found)
        assert found["created"] is not None

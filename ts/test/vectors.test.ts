// The vectors of the protocol, which a client in any language can prove itself by.

import { readFileSync } from "node:fs";
import { Decoder } from "../src/wire.ts";

interface Body {
	body?: string;
	base64?: string;
}

const file = new URL("../../server/vectors.jsonl", import.meta.url);
const vectors: { about: string; answer: Body & { status: number; header: { [name: string]: string } } }[] = readFileSync(file, "utf8")
	.trim()
	.split("\n")
	.map((line) => JSON.parse(line));

test.each(vectors.filter((v) => v.answer.header["Content-Type"] === "application/vnd.turnstone"))("the answer of $about is read", ({ answer }) => {
	const bytes = Buffer.concat([Buffer.from(answer.body ?? ""), Buffer.from(answer.base64 ?? "", "base64")]);
	const documents = [...new Decoder().feed(bytes)];
	expect(documents.length).toBeGreaterThan(0);
	for (const d of documents) {
		const node = d.value.node;
		if (node) expect(["hello", "hi é", Buffer.from([0xff, 0xd8, 0xff, 0xe0]).toString()]).toContain(d.bytes(node.payload).toString());
	}
});

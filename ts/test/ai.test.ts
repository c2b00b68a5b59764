import type { ModelMessage, UIMessage } from "ai";
import * as ai7 from "ai";
import * as mocks7 from "ai/test";
import * as ai6 from "ai-6";
import * as mocks6 from "ai-6/test";
import { z } from "zod";
import { TurnstoneChats } from "../src/ai.ts";
import { ConflictError } from "../src/errors.ts";
import { absolute, children } from "../src/server.ts";
import { newStore, open } from "./helpers.ts";

const message = (id: string, text: string, role: UIMessage["role"] = "user"): UIMessage => ({ id, role, parts: [{ type: "text", text }] });

// What is kept is the same for both versions.
describe.each([
	{ version: 7, ai: ai7, mocks: mocks7 },
	{ version: 6, ai: ai6 as unknown as typeof ai7, mocks: mocks6 as unknown as typeof mocks7 },
])(
	"AI SDK $version",
	({ ai: { convertToModelMessages, stepCountIs, streamText, tool, validateUIMessages }, mocks: { MockLanguageModelV3, simulateReadableStream } }) => {
		test("a chat is loaded as it was saved", async () => {
			const db = await open();
			const chats = new TurnstoneChats(db);
			expect(await chats.load("c/1")).toEqual([]);
			await chats.save({ chatId: "c/1", messages: [] });
			expect((await db.list()).sessions).toEqual([]); // Nothing to save makes no chat.
			const messages = [message("1", "hello"), message("2", "hi", "assistant"), { ...message("3", "\ud83d"), metadata: { at: 1 } }];
			await chats.save({ chatId: "c/1", messages });
			await chats.save({ chatId: "c/1", messages });
			expect(await chats.load("c/1")).toEqual(messages);
			const session = await db.session("ai/c/1");
			expect((await session.info()).revision).toBe(1);
			// Only what is new is stored.
			await chats.save({ chatId: "c/1", messages: [...messages, message("4", "more", "assistant")] });
			expect(await session.info()).toMatchObject({ revision: 2, nodes: 4 });
			// A message is regenerated: what it was can be read as an earlier revision.
			const other = [...messages.slice(0, 1), message("5", "other", "assistant")];
			await chats.save({ chatId: "c/1", messages: other });
			expect(await chats.load("c/1")).toEqual(other);
			expect((await session.load({ at: 2 })).nodes).toHaveLength(4);
			await chats.save({ chatId: "c/1", messages: other.slice(0, 1) });
			expect(await chats.load("c/1")).toEqual(other.slice(0, 1));
			await chats.save({ chatId: "c/1", messages: [] });
			expect(await chats.load("c/1")).toEqual([]);
			await chats.save({ chatId: "c/1", messages: other });
			expect(await chats.load("c/1")).toEqual(other);
			await chats.save({ chatId: "b", messages });
			await db.create("another", { group: "ai" }); // by somebody else
			expect((await chats.list()).chats.map((c) => c.chatId)).toEqual(["b", "c/1"]);
			await db.delete("another");
			const first = await chats.list({ limit: 1 });
			expect(first.chats).toHaveLength(1);
			expect((await chats.list({ after: first.next as string })).chats.map((c) => c.chatId)).toEqual(["c/1"]);
			await chats.save({ chatId: "dates", messages: [{ ...message("1", "x"), metadata: new Date(0) }] });
			expect((await chats.load("dates"))[0]?.metadata).toBe("1970-01-01T00:00:00.000Z");
			await chats.delete("c/1");
			await chats.delete("c/1");
			expect(await chats.load("c/1")).toEqual([]);
			await expect(chats.save({ chatId: "b", messages: [{ ...message("1", "x"), metadata: { n: Number.NaN } }] })).rejects.toThrow(TypeError);
		});

		test("of saves at once all are whole, and none is lost", async () => {
			const db = await open();
			const chats = new TurnstoneChats(db);
			const saved = Array.from({ length: 10 }, (_, i) => [message("q", "question"), message(`a${i}`, `answer ${i}`, "assistant")]);
			await Promise.all(saved.map((messages) => chats.save({ chatId: "c", messages })));
			const session = await db.session("ai/c");
			const leaves = await session.leaves();
			expect(saved).toContainEqual(await chats.load("c"));
			const found = await Promise.all(leaves.map(async (n) => JSON.parse((await session.node({ id: n.id })).payload.toString()).id));
			expect(found.sort()).toEqual(saved.map((m) => m[1]?.id));
		});

		const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };
		const finish = (unified: "stop" | "tool-calls") => ({ type: "finish" as const, usage, finishReason: { unified, raw: undefined } });
		const says = (text: string) => [
			{ type: "text-start" as const, id: "1" },
			{ type: "text-delta" as const, id: "1", delta: text },
			{ type: "text-end" as const, id: "1" },
			finish("stop"),
		];

		test("a chat with a tool goes on in another process of the store, after the server was killed", async () => {
			const store = newStore();
			const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `sunny in ${city}` });
			const prompts: unknown[] = [];
			const turn = async (text: string, ...answers: ReturnType<typeof says>[] | unknown[][]) => {
				const db = await open(store, { idle: 5 });
				const chats = new TurnstoneChats(db);
				const messages = [...(await validateIfAny(await chats.load("chat"))), message(`u${text.length}`, text)];
				const model = new MockLanguageModelV3({
					doStream: async ({ prompt }) => {
						prompts.push(prompt);
						return { stream: simulateReadableStream({ chunks: answers.shift() as ReturnType<typeof says> }) };
					},
				});
				const result = streamText({ model, tools: { weather }, stopWhen: stepCountIs(3), messages: await convertToModelMessages(messages) });
				await new Promise<void>((done, fail) => {
					const stream = result.toUIMessageStream({
						originalMessages: messages,
						generateMessageId: () => `a${text.length}`,
						onFinish: ({ messages }) => chats.save({ chatId: "chat", messages }).then(done, fail),
					});
					void (async () => {
						for await (const _ of stream);
					})();
				});
				db.close();
			};
			const validateIfAny = async (messages: UIMessage[]) => (messages.length > 0 ? validateUIMessages({ messages }) : messages);
			await turn(
				"Weather?",
				[{ type: "tool-call", toolCallId: "1", toolName: "weather", input: '{"city":"Oslo"}' }, finish("tool-calls")],
				says("It is sunny."),
			);
			process.kill(children.at(-1) as number, "SIGKILL");
			await turn("What did I ask?", says("For the weather."));
			const last = prompts.at(-1) as ModelMessage[];
			expect(last.map((m) => m.role)).toEqual(["user", "assistant", "tool", "assistant", "user"]);
			expect(JSON.stringify(last[2])).toContain("sunny in Oslo");
			const loaded = await new TurnstoneChats(await open(store)).load("chat");
			expect(loaded.map((m) => [m.id, m.role])).toEqual([
				["u8", "user"],
				["a8", "assistant"],
				["u15", "user"],
				["a15", "assistant"],
			]);
		});

		test("a save of a revision that somebody else has saved since is refused, and equal messages are not stored again", async () => {
			const chats = new TurnstoneChats(await open());
			expect(await chats.loadAt("c")).toEqual({ messages: [], revision: 0 });
			const first = await chats.saveAt({ chatId: "c", messages: [message("1", "one")], revision: 0 });
			const here = await chats.loadAt("c");
			expect(here).toEqual({ messages: [message("1", "one")], revision: first });
			// Another tab saves; this one is told.
			const other = await chats.saveAt({ chatId: "c", messages: [...here.messages, message("2", "other")], revision: here.revision });
			await expect(chats.saveAt({ chatId: "c", messages: [...here.messages, message("2", "here")], revision: here.revision })).rejects.toThrow(
				ConflictError,
			);
			expect((await chats.load("c")).map((m) => m.id)).toEqual(["1", "2"]);
			// The order of keys is no difference.
			const turned = (await chats.load("c")).map(({ id, role, parts }) => ({ parts, role, id }) as UIMessage);
			expect(await chats.saveAt({ chatId: "c", messages: turned })).toBe(other);
			expect(await chats.saveAt({ chatId: "c", messages: turned.slice(0, 1), revision: other })).toBe(other + 1);
		});

		test("a store of an unknown scheme is refused", () => {
			for (const store of ["sqlite:///x.db", "file:x", "Pebble:x"]) expect(() => absolute(store)).toThrow(/no scheme/);
			expect(absolute("pebble:/x")).toBe("pebble:/x");
			expect(absolute("./sqlite:x")).toMatch(/sqlite:x$/);
		});
	},
);

"use strict";
const at = (id) => document.getElementById(id);
let chat = location.hash.slice(1);
let revision = 0; // up to which the messages are shown
let busy = Promise.resolve();

function line(role, text) {
  const p = document.createElement("p");
  p.textContent = `${role}: ${text}`;
  at("messages").append(p);
  return p;
}

// Shows what was committed since.
function catchUp() {
  busy = busy.then(async () => {
    const now = await (await fetch(`chats/${chat}?after=${revision}`)).json();
    for (const { message } of now.messages) if (message.content) line(message.role, message.content);
    revision = now.revision;
  });
  return busy;
}

async function begin() {
  if (!chat) {
    const made = await fetch("chats", { method: "POST", body: JSON.stringify({ title: "from the page" }) });
    chat = (await made.json()).id;
    location.hash = chat;
  }
  await catchUp();
  new EventSource(`chats/${chat}/events?after=${revision}`).onmessage = catchUp;
}

at("form").onsubmit = async (event) => {
  event.preventDefault();
  const text = at("text").value;
  at("text").value = "";
  // A post that is sent again is answered once, and one whose author has not seen the last message is refused.
  const post = await fetch(`chats/${chat}/messages`, { method: "POST", headers: { "Idempotency-Key": crypto.randomUUID() }, body: JSON.stringify({ text, revision }) });
  if (!post.ok) return line("refused", (await post.json()).error);
  let streamed = null;
  for (let rest = "", reader = post.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const one of lines.map(JSON.parse)) {
      if (one.delta) (streamed ??= line("assistant", "")).textContent += one.delta;
      if (one.done || one.error) streamed?.remove(); // It is committed now, and comes as for the others.
    }
    if (done) return catchUp();
  }
};

begin();

// The pages work without this script. With it, they follow what is committed, get the parts of a long conversation when
// they come into sight, and have keys.
"use strict";

// What the server sends as a part of a page is HTML that it has made safe.
const fragments = window.trustedTypes?.createPolicy("fragments", { createHTML: (text) => text }) ?? { createHTML: (text) => text };

async function get(address) {
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw Object.assign(new Error(`${answer.status}`), { status: answer.status });
  return fragments.createHTML(await answer.text());
}

function say(text) {
  document.getElementById("said").textContent = text;
}

// Parts of a conversation come when they are near, and go when they are far, so that only some are on the page.
const loading = new Set();
function fill(part) {
  if (part.classList.contains("full") || loading.has(part)) return undefined;
  loading.add(part);
  return get(part.dataset.get)
    .then((html) => {
      part.innerHTML = html;
      part.classList.add("full");
      part.classList.remove("failed");
    })
    .catch(() => part.classList.add("failed"))
    .finally(() => loading.delete(part));
}
const near = new IntersectionObserver(
  (entries) => {
    for (const e of entries) if (e.isIntersecting) fill(e.target);
  },
  { rootMargin: "3000px" },
);
const far = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      if (isIntersecting || !target.classList.contains("full") || target.contains(document.activeElement)) continue;
      target.style.minHeight = `${boundingClientRect.height}px`; // It takes the same place.
      target.classList.remove("full");
      target.replaceChildren();
    }
  },
  { rootMargin: "15000px" },
);
for (const part of document.querySelectorAll(".chunk[data-get]")) {
  near.observe(part);
  far.observe(part);
}

// A link to a message leads to it, wherever it is.
const sought = document.querySelector(".chunk[data-target]");
if (sought) {
  fill(sought).then(() => {
    const target = document.getElementById(sought.dataset.target);
    target?.scrollIntoView({ block: "center" });
    target?.classList.add("chosen");
  });
}

// Sub-agents and forks open in place.
document.addEventListener(
  "toggle",
  (event) => {
    const child = event.target;
    if (!child.open || !child.matches?.("details.child") || child.dataset.done) return;
    child.dataset.done = "yes";
    get(child.dataset.get).then(
      (html) => (child.querySelector("div").innerHTML = html),
      () => delete child.dataset.done,
    );
  },
  true,
);

// The page begins at the end of a conversation, and stays there while it grows, until somebody scrolls up or opens
// something, which stays where it is.
const talk = document.getElementById("conversation");
let stay = Boolean(talk) && !location.hash;
const toEnd = () => window.scrollTo(0, document.body.scrollHeight);
const atEnd = () => window.innerHeight + window.scrollY > document.body.scrollHeight - 100;
if (talk) {
  let before = window.scrollY;
  addEventListener("scroll", () => {
    if (atEnd()) stay = true;
    else if (window.scrollY < before) stay = false;
    before = window.scrollY;
  });
  talk.addEventListener("click", (event) => {
    if (event.target.closest("summary")) stay = false;
  });
  new ResizeObserver(() => stay && toEnd()).observe(talk);
}

// Follows events of the server while the page is seen: a browser has few connections to one host. address returns where
// they come from, and heard is called for each.
function follow(address, heard) {
  let events = null;
  const connect = () => {
    if (document.hidden || events) return;
    events = new EventSource(address());
    events.onmessage = heard;
    events.onerror = () => {
      if (events?.readyState === EventSource.CLOSED) note("This page does not follow any more. Load it again.");
    };
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      events?.close();
      events = null;
    } else {
      connect();
    }
  });
  connect();
  return () => events?.close();
}

// Puts a link to this page on it, once.
function note(text) {
  if (document.querySelector(".note.again")) return;
  const p = document.createElement("p");
  p.className = "note again";
  const link = document.createElement("a");
  link.href = location.href;
  link.textContent = text;
  p.append(link);
  (talk ?? document.getElementById("main")).append(p);
}

if (talk?.dataset.live) {
  let busy = false;
  let again = false;
  let seen = 0; // the last revision that was told
  const more = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    do {
      again = false;
      if (!talk.dataset.last) location.reload(); // Nothing was there, and now there may be much.
      try {
        const box = document.createElement("section");
        box.className = "chunk full";
        box.innerHTML = await get(`${talk.dataset.new}&after=${talk.dataset.last}`);
        const last = box.querySelector("article:last-of-type");
        if (last) {
          talk.dataset.last = last.dataset.id;
          stay ||= atEnd();
          talk.append(box);
          say(`${box.querySelectorAll("article").length} new messages`);
        }
      } catch (error) {
        if (error.status === 404) {
          stop();
          note("The conversation goes on from elsewhere now. Show it.");
        } else {
          setTimeout(more, 3000);
        }
      }
    } while (again);
    busy = false;
  };
  const stop = follow(
    () => (seen ? talk.dataset.live.replace(/after=\d+/, `after=${seen}`) : talk.dataset.live),
    (event) => {
      seen = JSON.parse(event.data).revision;
      const slider = document.getElementById("at");
      if (slider && slider.value === slider.max) {
        slider.max = seen;
        slider.value = seen;
        document.getElementById("shown-at").textContent = seen;
      }
      more();
    },
  );
}

// The list of sessions is as new as the store.
const rows = document.getElementById("rows");
if (rows && !new URLSearchParams(location.search).has("after")) {
  const refresh = async () => {
    const here = new URL(location.href);
    here.searchParams.set("rows", "");
    const chosen = rows.querySelector(".chosen a")?.href;
    rows.innerHTML = await get(here);
    if (chosen) [...rows.querySelectorAll("a.item")].find((a) => a.href === chosen)?.closest("tr").classList.add("chosen");
    say("The list has changed");
  };
  follow(() => rows.dataset.live, refresh);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
}

const slider = document.getElementById("at");
slider?.addEventListener("input", () => (document.getElementById("shown-at").textContent = slider.value));
slider?.addEventListener("change", () => slider.form.requestSubmit());

// Keys.
function items() {
  return [...document.querySelectorAll("#rows tr, .history > li, .hits > li, #conversation article")].filter((i) => i.querySelector("a"));
}
function choose(next) {
  if (!next) return;
  for (const c of document.querySelectorAll(".chosen")) c.classList.remove("chosen");
  next.classList.add("chosen");
  const link = next.querySelector("a.item, h2 a, a");
  link.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select, [contenteditable]")) return;
  const all = items();
  const at = all.findIndex((i) => i.classList.contains("chosen"));
  switch (event.key) {
    case "/":
      document.getElementById("search") ? document.getElementById("search").focus() : (location.href = document.querySelector('nav a[href^="/ui/search"]')?.href ?? document.querySelector(".home").href);
      break;
    case "j":
      choose(all[Math.min(at + 1, all.length - 1)]);
      break;
    case "k":
      choose(all[at < 0 ? all.length - 1 : Math.max(at - 1, 0)]);
      break;
    case "g":
      window.scrollTo(0, 0);
      choose(all[0]);
      break;
    case "G":
      toEnd();
      choose(all[all.length - 1]);
      break;
    case "Enter": {
      if (event.target !== document.body && event.target !== all[at]?.querySelector("h2 a")) return;
      const folded = all[at]?.matches("article") ? all[at].querySelectorAll(":scope > details") : [];
      if (folded.length === 0) return;
      const open = ![...folded].some((d) => d.open);
      stay = false;
      for (const d of folded) d.open = open;
      break;
    }
    case "?":
      location.href = document.querySelector('nav a[href*="/ui/help"]').href;
      break;
    default:
      return;
  }
  event.preventDefault();
});

// What the page shows of a cluster, of its locks, and of one lock.

import { bytes, clock, count, duration, fill, h, keep, number, say } from "./elements.js";

const cell = (attributes, ...children) => h("td", { role: "cell", ...attributes }, ...children);
const row = (...cells) => h("tr", { role: "row" }, ...cells);

/** The page of another node. */
export const pageOf = (address, hash = "") => `${location.protocol}//${address}/ui/${hash}`;
export const lockHash = (key) => `#/lock/${encodeURIComponent(key)}`;
const recordHash = (key) => `#/record/${encodeURIComponent(key)}`;

/** The head of the page. */
export function summary(element, status) {
  const { leader, members } = status;
  const item = (name, ...text) => h("div", {}, h("dt", {}, name), h("dd", {}, ...text));
  fill(
    element,
    item("Leader", leader ? `node ${leader.id}` : h("span", { class: "red" }, "none")),
    item("Term", number(status.term)),
    item("Committed", number(status.commit)),
    item("Locks", number(status.locks)),
    item("Sessions", number(status.sessions)),
    item("Nodes", `${members.filter((member) => member.connected || member.id === status.node).length}`, h("small", {}, ` of ${members.length}`)),
  );
}

/** One row for each node. Only the leader knows how far the others are, and each node how much space it has: what they
 * have not said in time is unknown. */
export function nodes(body, status) {
  // A node that is behind does not know all that is committed.
  const end = Math.max(status.commit, ...status.members.map((member) => member.matched ?? 0));
  const rows = status.members.map((member) => {
    const own = member.id === status.node;
    const isLeader = member.id === status.leader?.id;
    const role = isLeader ? "leader" : own ? status.role.replace("_", "-") : member.returning ? "returning" : member.voter ? "follower" : "learner";
    const connected = own || member.connected;
    const behind = isLeader ? 0 : typeof member.matched !== "number" ? undefined : end - member.matched;
    const { version, disk } = member;
    const shown = { id: member.id, generation: member.generation, own, role, version, connected, behind, free: disk?.free_bytes, low: disk?.low, address: member.client_addr };
    return [`${member.id}`, JSON.stringify(shown), () => nodeRow(shown)];
  });
  keep(body, rows);
}

function nodeRow({ id, generation, own, role, version, connected, behind, free, low, address }) {
  const name = generation ? `${id}.${generation}` : `${id}`;
  const link = address && !own ? h("a", { href: pageOf(address), title: "The page of this node" }, address) : address;
  const unknown = (why) => h("span", { class: "soft", title: why }, "–", h("span", { class: "unseen" }, why));
  return row(
    cell({}, h("strong", {}, name), " ", h("span", { class: "soft text" }, link ?? "")),
    cell({ class: role === "leader" && "leader" }, role),
    cell({}, typeof version !== "string" ? unknown("this node has not been told it") : h("span", { class: "text" }, version)),
    cell({ class: "number", "data-label": "behind" }, behind === undefined ? unknown("the leader has not said it") : number(behind)),
    cell({ class: "number", "data-label": "free" }, free === undefined || free === null ? unknown("the node has not said it") : h("span", { class: low && "amber" }, bytes(free), low && " (low)")),
    cell({ class: !connected && "red" }, own ? h("span", { class: "soft" }, "this page") : connected ? "connected" : "DOWN"),
  );
}

const mode = ({ mode: name, permits, of }) => (permits ? `${permits} of ${of}` : (name ?? "exclusive"));
/** On a phone the mode and the token stand below the holder. */
const details = (holder) => h("span", { class: "phone soft" }, `${mode(holder)}, token ${holder.token}`);
const ownerOf = ({ owner, session }) => [owner ? h("span", { class: "text" }, owner) : "session", " ", h("span", { class: "soft" }, `${session}`)];

/** The bar that runs down; [`tick`] moves it. */
function ttl({ session }) {
  return h("span", { class: "ttl", "data-session": session }, h("span", { class: "bar", "aria-hidden": "true" }, h("i")), h("span", { class: "left" }));
}

/** Moves all bars. */
export function tick(table) {
  for (const element of document.querySelectorAll(".ttl")) {
    const left = table.left({ session: Number(element.dataset.session) });
    element.querySelector("i").style.transform = `scaleX(${left?.part ?? 0})`;
    element.classList.toggle("low", left !== undefined && left.part < 0.25);
    say(element.querySelector(".left"), left === undefined ? "" : left.ms > 0 ? duration(left.ms) : "due");
  }
}

const SHOWN = 3;

/** The list of locks. */
export function locks(body, found) {
  keep(body, found.map((lock) => [`l${lock.key}`, JSON.stringify(lock), () => lockRow(lock)]));
}

function lockRow({ key, holders, queue }) {
  const lines = (make) => [
    holders.slice(0, SHOWN).map((holder) => h("div", { class: "line" }, make(holder))),
  ];
  const more = holders.length > SHOWN && h("div", { class: "line soft" }, `and ${count(holders.length - SHOWN, "more", "more")}`);
  const waiters = queue.slice(0, 2).map((waiter) => waiter.owner || `session ${waiter.session}`);
  const rest = queue.length > 2 ? ` and ${queue.length - 2} more` : "";
  const made = row(
    cell({}, h("a", { class: "key", href: lockHash(key) }, key)),
    cell({}, holders.length ? lines((holder) => [ownerOf(holder), details(holder)]) : h("div", { class: "line soft" }, "free: its first waiter waits for another key"), more),
    cell({}, lines(mode)),
    cell({ class: "number" }, lines(({ token }) => `${token}`)),
    cell({}, lines(ttl)),
    cell({}, queue.length > 0 && [h("strong", {}, `${queue.length}`), " ", h("span", { class: "soft text" }, waiters.join(", "), rest)]),
  );
  made.classList.add("new");
  return made;
}

/** The list of records. */
export function records(body, found) {
  keep(body, found.map((record) => [`r${record.key}`, JSON.stringify(record), () => recordRow(record)]));
}

function recordRow({ key, version, fence, bytes: size }) {
  return row(
    cell({}, h("a", { class: "key", href: recordHash(key) }, key)),
    cell({ class: "number", "data-label": "version" }, `${version}`),
    cell({ class: "number", "data-label": "token" }, fence ?? "–"),
    cell({ class: "number", "data-label": "size" }, size === undefined ? "–" : bytes(size)),
  );
}

/**
 * The page of one lock. `may` says whether the client may break it: `{ permitted, why }`, if that is known. `past` has the
 * events before the history, if they were asked for; they can be, if there is an `onPast`.
 */
export function lock(element, { key, lock: { holders, queue }, history, since, past, may }, onBreak, onPast) {
  const known = new Set(history.map(({ id }) => id));
  const before = (past?.events ?? []).filter(({ id }) => !known.has(id)).reverse();
  keep(element, [
    ["back", "", () => h("a", { class: "back", href: "#/" }, "← All locks")],
    ["key", key, () => h("h2", { class: "key" }, key)],
    ["state", `${holders.length} ${queue.length}`, () => h("p", {}, stateOf(holders, queue))],
    ["may", JSON.stringify(may ?? null), () => h("p", { class: "note" }, may?.permitted === false && `You cannot break this lock: ${may.why}.`)],
    ...holders.map((holder) => [`h${holder.session}-${holder.token}`, JSON.stringify([holder, may?.permitted]), () => holderOf(key, holder, may, onBreak)]),
    ["queue-title", `${queue.length > 0}`, () => h("h3", { hidden: queue.length === 0 }, "Waiting, in this order")],
    ["queue", JSON.stringify(queue), () => h("ol", { class: "queue" }, queue.map(waiterOf))],
    ["history-title", `${since} ${!past}`, () => h("h3", {}, past ? "What has happened" : `What has happened since ${since}`)],
    ["history", `${history.length} ${history[0]?.id ?? ""} ${before.length} ${before[0]?.id ?? ""}`, () => historyOf([...history, ...before])],
    ["past", JSON.stringify([Boolean(onPast), past?.isRead, past?.floor, past?.isCut, past?.refusal?.message]), () => pastOf(past, onPast)],
  ]);
}

function stateOf(holders, queue) {
  const held = holders.length === 0 ? "No session holds this lock" : holders.length === 1 ? "Held by one session" : `Held by ${holders.length} sessions`;
  return queue.length === 0 ? `${held}; none waits.` : `${held}; ${queue.length === 1 ? "one waits" : `${queue.length} wait`}.`;
}

function holderOf(key, holder, may, onBreak) {
  const item = (name, ...what) => h("div", {}, h("span", { class: "label" }, name), ...what);
  const others = (holder.keys ?? []).filter((other) => other !== key);
  const act = may?.permitted === false ? null : h("button", { type: "button", class: "danger", click: () => onBreak(holder) }, "Break…");
  return h(
    "div",
    { class: "holder" },
    item("Holder", h("span", { class: "text" }, holder.owner || "without a name")),
    item("Session", `${holder.session}`),
    item("Token", h("strong", {}, `${holder.token}`)),
    item("Mode", mode(holder)),
    holder.holds > 1 && item("Holds", `${holder.holds}`),
    item("Time left", ttl(holder)),
    act && h("div", { class: "act" }, act),
    holder.value !== null && holder.value !== undefined && h("div", { class: "wide" }, h("span", { class: "label" }, "Value"), h("span", { class: "value" }, holder.value)),
    others.length > 0 && h("div", { class: "wide" }, h("span", { class: "label" }, "Together with"), others.map((other) => [h("a", { class: "key", href: lockHash(other) }, other), " "])),
  );
}

function waiterOf(waiter, index) {
  return h("li", {}, h("span", { class: "rank" }, `${index + 1}`), h("span", {}, ownerOf(waiter)), h("span", { class: "soft" }, mode(waiter)));
}

function historyOf(history) {
  if (history.length === 0) return h("p", { class: "note" }, "Nothing yet. Events appear here as they happen; keeping a session alive is none.");
  const line = (event) =>
    h("li", { class: event.event === "gap" && "gap" }, h("span", { class: "soft" }, event.at ? clock(event.at) : "earlier"), h("span", {}, sentence(event)), h("span", { class: "soft" }, event.id && `entry ${event.id}`));
  return h("ol", { class: "history" }, history.map(line));
}

/** Where the history begins, or how to read what was before it. */
function pastOf(past, onPast) {
  const button = onPast && h("button", { type: "button", class: "past", click: onPast }, "Show earlier events");
  if (!past) return h("div", { class: "act" }, button);
  if (past.refusal) return h("div", {}, h("p", { class: "note" }, `The earlier events cannot be read: ${past.refusal.message}.`), button);
  if (!past.isRead) return h("p", { class: "note" }, "Reading the events that this node keeps…");
  if (past.isCut) return h("p", { class: "note" }, "Events before these are not shown.");
  if (past.floor > 0) return h("p", { class: "note" }, `The events up to entry ${past.floor} are not kept any more.`);
  return h("p", { class: "note" }, "These are all events of this lock since the cluster began.");
}

const BECAUSE = {
  request: "",
  expired: ", because its session expired",
  closed: ", because its session was closed",
  broken: ", because an operator broke the grant",
  denied: ", because the access rules do not permit it",
};

/** What an event tells, in words. */
export function sentence(event) {
  const who = event.owner ? `${event.owner} (session ${event.session})` : `session ${event.session}`;
  const because = BECAUSE[event.because] ?? "";
  switch (event.event) {
    case "granted": return `granted to ${who} with token ${event.token}, ${mode(event)}`;
    case "queued": return event.ahead ? `${who} waits, behind ${event.ahead}` : `${who} waits, as the first`;
    case "value": return `${who} replaced its value: ${event.value}`;
    case "released": return `released by ${who}, token ${event.token}${because}`;
    case "withdrawn": return `${who} waits no longer${because}`;
    case "expired": return `the time of ${who} is over`;
    case "broken": return `an operator broke the grant of ${who}, token ${event.token}`;
    case "put": return `the record of this key was written, version ${event.version}`;
    case "deleted": return "the record of this key was deleted";
    case "gap": return event.text;
    default: return event.event;
  }
}

/** The page of one record. */
export function record(element, key, found) {
  const title = [h("a", { class: "back", href: "#/records" }, "← All records"), h("h2", { class: "key" }, key)];
  if (found instanceof Error) return fill(element, title, h("p", { class: "note" }, found.message));
  const item = (name, what) => h("div", {}, h("span", { class: "label" }, name), what);
  const text = new TextDecoder("utf-8", { fatal: true });
  let content;
  try {
    // Line breaks are those of the content here, and every other control character is visible.
    content = h("pre", { tabindex: "0", "aria-label": "Content" }, text.decode(found.bytes).split("\n").flatMap((line, index) => (index ? [h("br"), line] : [line])));
  } catch {
    content = h("p", { class: "note" }, "The content is no text.");
  }
  const facts = h("div", { class: "holder" }, item("Version", found.version), item("Token", found.fence ?? "none"), item("Size", bytes(found.bytes.length)));
  return fill(element, title, facts, h("h3", {}, "Content"), content);
}

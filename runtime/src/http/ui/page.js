// The page: it follows the node's events, looks at what no event tells, and shows both.
//
// A watch gives the locks and records, and all changes. Keeping a session alive, the other nodes and the
// disk are no events, so the page also looks every two seconds. Without a watch, the looks are all it has.

import { clock, count, fill, h, number, say, visible } from "./elements.js";
import { Refusal, ask, hasToken, mayHaveToken, record, setToken, watch } from "./node.js";
import { Table } from "./table.js";
import * as views from "./views.js";

const LOOK_MS = 2_000;
/** With more keys the page does not follow all of them: it lists those that a search begins with. */
const FOLLOWED = 2_000;
const PAGE_KEYS = 1_000;
/** Rows of a list; a browser is slow with many more. */
const ROWS = 500;

const at = (id) => document.getElementById(id);
const table = new Table();
/** Since when the history has all events. */
let since = new Date();
let status;
/** The last event that was heard, or listing. */
let after;
/** The listing with which the history begins, by its entry; the events before it are the past. */
let listedAt;
/** What the node keeps of the past of the lock that is shown, once a person has asked for it. */
let past;
/** Why the node has not answered the last look. */
let trouble;
let isLive = false;
let isLarge = false;
let rights = { key: undefined, may: undefined, at: 0 };
let restart = new AbortController();

// ---- Where the page is: the list of locks or records, or one of them

function route() {
  const [, list, name] = /^#\/(locks?|records?)?(?:\/(.*))?$/.exec(location.hash) ?? [];
  try {
    const key = name && decodeURIComponent(name);
    if (list === "lock" && key) return { lock: key };
    if (list === "record" && key) return { record: key };
  } catch {
    // No key is written so: show the list.
  }
  return { list: list === "records" ? "records" : "locks" };
}

// ---- What the node says

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Follows the events for ever. */
async function follow() {
  let pause = 500;
  for (;;) {
    restart = new AbortController();
    if (after === undefined) {
      since = new Date();
      table.history = [];
      listedAt = undefined;
      forgetPast();
    }
    const { lock } = route();
    const query = !isLarge ? "prefix=" : lock ? `key=${encodeURIComponent(lock)}` : undefined;
    try {
      if (!query) await new Promise((_, reject) => restart.signal.addEventListener("abort", () => reject(restart.signal.reason)));
      let listed = 0;
      for await (const part of watch(query, after, restart.signal)) {
        if (part.event === "listing") {
          listed += part.data.locks.length + part.data.records.length;
          if (listed > FOLLOWED) throw new Refusal("large", "");
        }
        take(part);
        if (part.id !== undefined) after = part.id;
        pause = 500;
      }
      throw new Refusal("unreachable", "the stream of events ended");
    } catch (error) {
      isLive = false;
      // Another watch begins with a listing of its own.
      if (!(error instanceof Refusal)) after = undefined;
      else if (error.code === "large") [isLarge, after] = [true, undefined];
      else {
        if (error.code === "unauthenticated") table.replace([], []);
        await Promise.race([wait(pause), new Promise((resolve) => restart.signal.addEventListener("abort", resolve))]);
        pause = Math.min(2 * pause, error.code === "unreachable" || error.code === "no_leader" ? 2_000 : 10_000);
      }
      render();
    }
  }
}

/** Takes one part of the stream. */
function take({ event, data }) {
  switch (event) {
    case "quiet":
      isLive = true;
      break;
    case "listing":
      // A watch of one key says nothing of the others.
      table.list(isLarge ? { ...data, complete: false } : data);
      isLive = data.complete;
      if (data.complete) listedAt ??= data.revision;
      break;
    case "compacted":
      table.gap(`the node no longer has the events up to entry ${data.floor} (compacted): some of them are missing here`);
      break;
    case "end":
      throw new Refusal(data.error, data.message);
    default:
      isLive = true;
      table.apply(data);
      if (event === "granted") setTimeout(look, 100);
      if (data.key === route().lock) announce(`${data.key}: ${views.sentence(data)}`);
  }
  render();
}

/** Events of the past that the page keeps: the newest. */
const PAST = 2_000;
/** How often the page begins to read them: a busy node may drop the first ones meanwhile. */
const PAST_ATTEMPTS = 5;

/** Reads what the node keeps of the events before the listing, oldest first, and shows them as they come. */
async function readPast(key) {
  forgetPast();
  const reading = { key, events: [], floor: 0, isCut: false, isRead: false, refusal: undefined, stop: new AbortController() };
  past = reading;
  at("main").focus();
  render();
  try {
    // A node that no longer has the first events says which ones it has. Each attempt begins further from the end of those.
    for (let from = 0, attempt = 0; from !== undefined; attempt++) {
      if (attempt === PAST_ATTEMPTS) throw new Refusal("compacted", "the node drops events faster than this page reads them");
      const floor = await readPastFrom(from, reading);
      from = floor === undefined ? undefined : floor + Math.floor(((listedAt - floor) * attempt) / PAST_ATTEMPTS);
    }
    reading.isRead = true;
    announce(`${count(reading.events.length, "earlier event")} of ${key}.`);
  } catch (error) {
    if (reading.stop.signal.aborted) return;
    if (!(error instanceof Refusal)) throw error;
    reading.refusal = error;
  }
  render();
}

/** Reads the events after this entry, up to the listing. Gives the entry to begin after, if this one is compacted. */
async function readPastFrom(from, reading) {
  Object.assign(reading, { events: [], floor: from, isCut: false });
  for await (const { event, data } of watch(`key=${encodeURIComponent(reading.key)}`, `${from}`, reading.stop.signal)) {
    if (event === "compacted") return data.floor;
    if (event === "end") throw new Refusal(data.error, data.message);
    if (event === "quiet" || data.revision > listedAt) return undefined;
    reading.events.push(data);
    if (reading.events.length > PAST) reading.isCut = Boolean(reading.events.shift());
    render();
  }
  throw new Refusal("unreachable", "the stream of events ended");
}

function forgetPast() {
  past?.stop.abort();
  past = undefined;
}

/** Has a screen reader say a sentence. Those before it stay: the answer to a break and its events come in any order. */
function announce(sentence) {
  const log = at("announcements");
  log.append(h("p", {}, sentence));
  if (log.children.length > 10) log.firstChild.remove();
}

let isLooking = false;

/** Looks at what no event tells. */
async function look() {
  if (isLooking) return;
  isLooking = true;
  try {
    status = await ask("/v1/status?ask=members");
    noticeNewCluster();
    const prefix = isLarge ? at("search").value : "";
    const page = await pages("locks", prefix);
    const records = route().list === "records" || !isLive ? await pages("records", prefix, "/v1/kv") : undefined;
    if (isLive) {
      table.look(page.found, page.age_ms);
      if (records) table.weigh(records.found);
    } else if (!isLarge || route().list) {
      table.replace(page.found, records.found);
    }
    await askRights();
    notice();
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    notice(error);
  } finally {
    isLooking = false;
    render();
  }
}

let behind = 0;

/**
 * A node that has fewer entries than this page has heard of is of another cluster at the same address, or
 * has just started and does not know yet what is committed. The latter does not last.
 */
function noticeNewCluster() {
  const isBehind = status.leader && after && Number.parseInt(after, 10) > status.commit;
  behind = isBehind ? behind + 1 : 0;
  if (behind < 3) return;
  behind = 0;
  restart.abort();
}

/** The first pages of a list. */
async function pages(name, prefix, path = `/v1/${name}`) {
  const found = [];
  let after = "";
  let age;
  do {
    const part = await ask(`${path}?consistency=stale&limit=${PAGE_KEYS}&prefix=${encodeURIComponent(prefix)}${after}`);
    found.push(...part[name]);
    age ??= part.age_ms;
    after = part.next_after === null ? "" : `&after=${encodeURIComponent(part.next_after)}`;
  } while (after && found.length < (isLarge ? PAGE_KEYS : FOLLOWED));
  return { found, age_ms: age };
}

/** Whether the client may break the lock that is shown. */
async function askRights() {
  const { lock: key } = route();
  if (!key || (rights.key === key && Date.now() - rights.at < 10_000)) return;
  const may = await ask(`/v1/access/test?right=break&key=${encodeURIComponent(key)}`).catch(() => undefined);
  rights = { key, may, at: Date.now() };
}

// ---- What the page shows

let isDue = false;

/** Shows what has changed, a moment later: many events come together. */
function render() {
  if (isDue) return;
  isDue = true;
  setTimeout(() => {
    isDue = false;
    show();
  }, 30);
}

function show() {
  if (status) {
    say(at("cluster"), status.cluster_name);
    views.summary(at("summary"), status);
    views.nodes(at("nodes"), status);
    say(at("about"), `Node ${status.node} of the cluster ${status.cluster_name} serves this page.`);
  }
  noteLive();
  showLists();
  const { lock, record: shownRecord } = route();
  at("one").hidden = !lock && !shownRecord;
  at("nodes-section").hidden = Boolean(lock ?? shownRecord);
  if (lock) {
    const may = rights.key === lock ? rights.may : undefined;
    const found = table.locks.get(lock) ?? { holders: [], queue: [] };
    const shown = { key: lock, lock: found, history: table.historyOf(lock), since: clock(since), past, may };
    const onPast = listedAt === undefined ? undefined : () => readPast(lock);
    views.lock(at("one"), shown, (holder) => askBreak(lock, holder), onPast);
  }
  const name = lock ?? shownRecord;
  document.title = `${name ? `${visible(name)} · ` : ""}${status?.cluster_name ?? "Palisade"}`;
  views.tick(table);
}

function showLists() {
  const { list } = route();
  const text = at("search").value;
  const kinds = { locks: table.find(isLarge ? "" : text), records: table.findRecords(isLarge ? "" : text) };
  for (const [kind, found] of Object.entries(kinds)) {
    at(`${kind}-table`).hidden = list !== kind || found.length === 0;
    if (list === kind) {
      views[kind](at(kind), found.slice(0, ROWS));
      say(at("found"), foundNote(kind, found.length, text));
    }
    say(at(`${kind}-count`), isLarge ? "" : number(table[kind].size));
    if (list === kind) at(`to-${kind}`).setAttribute("aria-current", "page");
    else at(`to-${kind}`).removeAttribute("aria-current");
  }
  if (!list) say(at("found"), "");
}

function foundNote(kind, found, text) {
  const one = kind.slice(0, -1);
  if (isLarge) return `There are too many keys to follow: these are the first of the ${kind} whose keys begin with “${text}”, every ${LOOK_MS / 1000} s.`;
  if (found > ROWS) return `${count(found, one)}; the first ${ROWS} are shown: search for the others.`;
  if (text) return found === 0 ? `No ${one} has “${text}” in its key, owner or token.` : `${count(found, one)} found.`;
  if (found > 0) return "";
  return kind === "locks" ? "No lock is held." : "There are no records.";
}

/** Whether what is shown is of this moment. */
function noteLive() {
  const isOff = trouble?.code === "unreachable";
  const node = status ? ` from node ${status.node}` : "";
  at("live").className = isOff ? "live off" : isLive && !trouble ? "live on" : "live";
  if (isOff) say(at("live"), "no connection");
  else if (trouble?.code === "unauthenticated") say(at("live"), "not admitted");
  else if (status) say(at("live"), isLive ? `live${node}` : `looking every ${LOOK_MS / 1000} s`);
}

/** A sentence above everything, and what to do; none, if all is well. */
function notice(refusal) {
  trouble = refusal;
  const version = refusal ? `${refusal.code} ${refusal.message}` : "";
  if (at("notice").dataset.version === version) return;
  at("notice").dataset.version = version;
  at("notice").hidden = !refusal;
  if (!refusal) return;
  if (refusal.code === "unreachable") {
    const others = (status?.members ?? []).filter((member) => member.id !== status.node && member.client_addr);
    const links = others.map((member) => [" ", h("a", { href: views.pageOf(member.client_addr, location.hash) }, `node ${member.id}`)]);
    fill(at("notice"), "This node does not answer; the page tries again. What is shown may be old. ", others.length > 0 && ["Open the page of another node:", links]);
  } else if (refusal.code === "unauthenticated") {
    at("identity").open = true;
    const enter = h("button", { type: "button", click: () => at("token").focus() }, "Enter a token");
    fill(at("notice"), h("p", {}, "This node answers only clients that prove who they are: enter a bearer token, or give your browser a client certificate. ", enter), h("p", { class: "note" }, refusal.message));
  } else {
    fill(at("notice"), refusal.message);
  }
}

// ---- Breaking a lock

let breaking;

function askBreak(key, holder) {
  breaking = { key, holder };
  const who = holder.owner ? `${visible(holder.owner)} (session ${holder.session})` : `Session ${holder.session}`;
  const others = (holder.keys ?? []).filter((other) => other !== key);
  const also = others.length > 0 ? ` The grant ends at ${count(others.length, "other key")}, too.` : "";
  say(at("break-title"), `Break ${key}?`);
  say(at("break-what"), `${who} holds it with token ${holder.token}, and loses it at once. It may go on working until it notices: only a resource that compares tokens refuses it.${also}`);
  say(at("break-why"), "");
  at("break").showModal();
  at("reason").focus();
}

async function breakNow(submitted) {
  submitted.preventDefault();
  const { key, holder } = breaking;
  say(at("break-why"), "");
  at("break-now").disabled = true;
  try {
    await ask(`/v1/locks/${encodeURIComponent(key)}/break`, { method: "POST", body: { token: holder.token, reason: at("reason").value } });
    at("break").close();
    at("reason").value = "";
    announce(`The grant of ${key} with token ${holder.token} is broken.`);
    at("main").focus();
    look();
  } catch (refusal) {
    fill(at("break-why"), whyNotBroken(refusal, key));
  } finally {
    at("break-now").disabled = false;
  }
}

function whyNotBroken(refusal, key) {
  const address = status?.leader?.client_addr;
  const leader = address ? h("a", { href: views.pageOf(address, views.lockHash(key)) }, `this lock on the page of node ${status.leader.id}`) : "its page";
  switch (refusal.code) {
    case "not_leader":
      return ["Nothing was done: only the leader breaks locks, and this node does not lead. Open ", leader, "."];
    case "wrong_listener":
      return "Nothing was done: this node breaks locks only at its admin address (--admin-addr). Open the page there.";
    case "unauthenticated":
      return `Nothing was done: ${refusal.message}. Close this window, and enter a token at the end of the page.`;
    case "leadership_lost":
    case "shutting_down":
    case "unreachable":
      return `It is unknown whether the lock was broken (${refusal.message}): close this window and look at it, before you try again.`;
    default:
      return `Nothing was done: ${refusal.message}.`;
  }
}

// ---- What a person does

async function showRecord() {
  const { record: key } = route();
  if (!key) return;
  fill(at("one"));
  const found = await record(key).catch((error) => error);
  if (route().record === key) views.record(at("one"), key, found);
}

addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return;
  fill(at("one"));
  forgetPast();
  rights = { key: undefined, may: undefined, at: 0 };
  if (isLarge) restart.abort();
  scrollTo(0, 0);
  if (!route().list) at("main").focus();
  showRecord();
  render();
  look();
});

let searched;
at("search").addEventListener("input", () => {
  render();
  clearTimeout(searched);
  if (isLarge) searched = setTimeout(look, 300);
});

addEventListener("keydown", (pressed) => {
  const isText = pressed.target instanceof HTMLInputElement;
  if (pressed.key === "/" && !isText && !at("break").open && !pressed.ctrlKey && !pressed.metaKey) {
    pressed.preventDefault();
    at("search").focus();
  }
});

function useToken(text) {
  setToken(text);
  at("token").value = "";
  say(at("identity-summary"), hasToken() ? "Bearer token: in use" : "Bearer token");
  rights.at = 0;
  restart.abort();
  showRecord();
  look();
}

at("token-form").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  useToken(at("token").value);
});
at("forget").addEventListener("click", () => useToken(""));
at("break-form").addEventListener("submit", breakNow);
at("break-cancel").addEventListener("click", () => at("break").close());
// A row that changed while the window was open is another element: the focus has nowhere to go back to.
at("break").addEventListener("close", () => {
  const focused = document.activeElement;
  if (focused === document.body || at("break").contains(focused)) (at("one").querySelector(".danger") ?? at("main")).focus();
});
at("token-form").hidden = !mayHaveToken;
at("no-token").hidden = mayHaveToken;

setInterval(() => document.hidden || views.tick(table), 250);
setInterval(() => document.hidden || look(), LOOK_MS);
document.addEventListener("visibilitychange", () => document.hidden || look());
follow();
look();
showRecord();

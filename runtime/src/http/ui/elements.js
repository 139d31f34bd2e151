// Elements of the page. All text becomes text nodes, and never HTML, whatever a client has put into a
// key, an owner or a value.

/** Control characters, line separators, and what turns the direction of text (docs/trust-boundaries.md). */
const HIDDEN = /[\p{Cc}\u2028\u2029\u202A-\u202E\u2066-\u2069]/gu;
const NAMED = { "\n": "\\n", "\t": "\\t", "\r": "\\r" };

/** Text as a person can read it. */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => NAMED[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** An element with attributes and children; functions are listeners, and empty children are left out. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(key, value);
  }
  put(element, children);
  return element;
}

/** Replaces what an element has. */
export function fill(element, ...children) {
  element.replaceChildren();
  put(element, children);
}

function put(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
}

/** Replaces a text, if it is another one: what did not change is not read out again. */
export function say(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/**
 * Brings the children of an element in line with a list: `[key, version, make]`. A child whose version is
 * the same stays, with the focus and the selection in it.
 */
export function keep(parent, wanted) {
  const keys = new Set(wanted.map(([key]) => key));
  const present = new Map();
  let lost = -1;
  [...parent.children].forEach((child, index) => {
    if (keys.has(child.dataset.key)) return present.set(child.dataset.key, child);
    if (child.contains(document.activeElement)) lost = index;
    return child.remove();
  });
  let before = parent.firstElementChild;
  for (const [key, version, make] of wanted) {
    let child = present.get(key);
    if (child?.dataset.version !== version) {
      const made = make();
      Object.assign(made.dataset, { key, version });
      if (child) replace(child, made);
      if (child && before === child) before = made;
      child = made;
    }
    if (child === before) before = before.nextElementSibling;
    else parent.insertBefore(child, before);
  }
  // The focus was in a child that is gone: it goes to the one that has taken its place.
  if (lost >= 0) (parent.children[lost] ?? parent.lastElementChild)?.querySelector(PLACES)?.focus();
}

/** What can have the focus. */
const PLACES = "a, button";

/** Replaces an element, and the focus goes to what stands in the place of what had it. */
function replace(old, made) {
  const place = old.contains(document.activeElement) ? [...old.querySelectorAll(PLACES)].indexOf(document.activeElement) : -1;
  old.replaceWith(made);
  if (place >= 0) made.querySelectorAll(PLACES)[place]?.focus();
}

export const number = (value) => Number(value).toLocaleString("en");

/** A number with its noun. */
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toPrecision(2)} ${units[unit]}`;
}

export function duration(ms) {
  const seconds = Math.ceil(ms / 1000);
  if (seconds < 120) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const clock = (at) => at.toLocaleTimeString("en-GB");

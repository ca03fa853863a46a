// Parts that several pages are made of: messages to the reader, dialogs, fields, tabs, and a list that holds only what is seen.
import { html, useState, useEffect, useRef, useCallback, useLayoutEffect } from "./lib.js";
import { ApiError } from "./api.js";

// --- what happened, for eyes and for screen readers

let tellToasts = () => {};
let toastNumber = 0;

export function say(text, level = "good") {
  tellToasts((all) => [...all.slice(-3), { number: ++toastNumber, text, level }]);
}

// Something the reader wrote that cannot be: told to them, and no fault of the page.
export class Mistake extends Error {}

export const complain = (error) => {
  if (error?.name === "AbortError") return;
  if (!(error instanceof ApiError || error instanceof Mistake)) console.error(error);
  say(error.message ?? String(error), "bad");
};

export function Toasts() {
  const [toasts, set] = useState([]);
  tellToasts = set;
  const drop = (number) => set((all) => all.filter((one) => one.number !== number));
  useEffect(() => {
    if (!toasts.length) return undefined;
    const last = toasts[toasts.length - 1];
    const timer = setTimeout(() => drop(last.number), last.level === "bad" ? 15000 : 5000);
    return () => clearTimeout(timer);
  }, [toasts]);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.map(
      (one) => html`<div class="toast" data-level=${one.level} key=${one.number}>
        <span>${one.text}</span><button class="plain" aria-label="Dismiss" onClick=${() => drop(one.number)}>×</button>
      </div>`,
    )}
  </div>`;
}

// --- dialogs

export function Dialog({ title, onClose, children, wide }) {
  const box = useRef();
  useEffect(() => {
    const dialog = box.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      before?.focus?.();
    };
  }, []);
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title} onCancel=${(event) => (event.preventDefault(), onClose())}>
    <header><h2>${title}</h2><button class="plain" aria-label="Close" onClick=${onClose}>×</button></header>
    ${children}
  </dialog>`;
}

let askNow = null;
export const confirm = (text, word = "Yes") => new Promise((answer) => askNow({ text, word, answer }));

export function Confirmation() {
  const [asked, set] = useState(null);
  askNow = set;
  if (!asked) return null;
  const end = (value) => {
    set(null);
    asked.answer(value);
  };
  return html`<${Dialog} title="Are you sure?" onClose=${() => end(false)}>
    <p>${asked.text}</p>
    <footer><button onClick=${() => end(false)}>No</button><button class="danger" onClick=${() => end(true)}>${asked.word}</button></footer>
  </${Dialog}>`;
}

// --- fields

let fieldNumber = 0;
export function Field({ label, value, onInput, type = "text", hint, options, rows, ...rest }) {
  const [id] = useState(() => `field-${++fieldNumber}`);
  const change = (event) => onInput(type === "checkbox" ? event.target.checked : event.target.value);
  const described = hint ? { "aria-describedby": `${id}-hint` } : {};
  let input;
  if (options) {
    input = html`<select id=${id} value=${value} onChange=${change} ...${described} ...${rest}>
      ${options.map((one) => html`<option value=${one.value ?? one} selected=${(one.value ?? one) === value}>${one.label ?? one}</option>`)}
    </select>`;
  } else if (type === "checkbox") {
    input = html`<input id=${id} type="checkbox" checked=${value} onChange=${change} ...${described} ...${rest} />`;
  } else if (rows) {
    input = html`<textarea id=${id} rows=${rows} value=${value} onInput=${change} spellcheck=${false} ...${described} ...${rest}></textarea>`;
  } else {
    input = html`<input id=${id} type=${type} value=${value} onInput=${change} autocomplete="off" spellcheck=${false} ...${described} ...${rest} />`;
  }
  return html`<div class="field" data-type=${type}>
    <label for=${id}>${label}</label>${input}${hint && html`<small id="${id}-hint">${hint}</small>`}
  </div>`;
}

export function Tabs({ label, tabs, current, hrefOf }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map((one) => html`<a href=${hrefOf(one.name)} aria-current=${one.name === current ? "page" : null} key=${one.name}>${one.label}</a>`)}
  </nav>`;
}

export function Progress({ label, done, total }) {
  return html`<div class="progress">
    <progress max=${total || 1} value=${Math.min(done, total || 1)} aria-label=${label}></progress>
    <span>${label}</span>
  </div>`;
}

// --- a list of any length: only the rows in view exist, and only those near it are fetched

const WINDOW = 120;

export function VirtualList({ label, version, rowHeight = 36, load, renderRow, header, onKey, empty }) {
  const box = useRef();
  const [data, set] = useState({ total: null, skip: 0, rows: [] });
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [focus, setFocus] = useState(0);
  const wanted = useRef({});
  const fetchAt = useCallback(async (first) => {
    const skip = Math.max(0, first - Math.floor(WINDOW / 3));
    const mine = (wanted.current = { skip });
    try {
      const found = await load(skip, WINDOW);
      if (wanted.current === mine) set({ total: found.total, skip, rows: found.rows });
    } catch (error) {
      if (wanted.current === mine) complain(error);
    }
  }, [load]);
  const first = Math.floor(top / rowHeight);
  const visible = Math.ceil(height / rowHeight) + 1;
  useEffect(() => {
    fetchAt(first);
  }, [fetchAt, version]);
  useEffect(() => {
    const end = Math.min(first + visible, data.total ?? 0);
    const known = first >= data.skip && end <= data.skip + data.rows.length;
    if (data.total !== null && !known && wanted.current.skip !== Math.max(0, first - Math.floor(WINDOW / 3))) fetchAt(first);
  }, [first, visible, data]);
  useLayoutEffect(() => {
    const place = box.current;
    const measure = () => setHeight(place.clientHeight);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(place);
    return () => observer.disconnect();
  }, []);
  const total = data.total ?? 0;
  const move = (to) => {
    const next = Math.max(0, Math.min(total - 1, to));
    setFocus(next);
    const box_ = box.current;
    if (next * rowHeight < box_.scrollTop) box_.scrollTop = next * rowHeight;
    else if ((next + 2) * rowHeight > box_.scrollTop + box_.clientHeight) box_.scrollTop = (next + 2) * rowHeight - box_.clientHeight;
  };
  const key = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: visible - 2, PageUp: 2 - visible, Home: -total, End: total }[event.key];
    if (by !== undefined) {
      event.preventDefault();
      move(focus + by);
    } else if (event.target === box.current && onKey && data.rows[focus - data.skip] && onKey(event, data.rows[focus - data.skip])) {
      event.preventDefault();
    }
  };
  const shown = [];
  for (let at = Math.max(0, first - 2); at < Math.min(total, first + visible + 2); at += 1) {
    const row = data.rows[at - data.skip];
    shown.push(
      html`<div class="row" role="row" aria-rowindex=${at + 2} aria-selected=${at === focus} id="row-${at}" key=${at}
        style=${{ transform: `translateY(${at * rowHeight}px)`, height: `${rowHeight}px` }} onMouseDown=${() => setFocus(at)}>
        ${row ? renderRow(row) : html`<span role="gridcell" class="quiet">…</span>`}
      </div>`,
    );
  }
  return html`<div class="virtual" ref=${box} role="grid" tabindex="0" aria-label=${label} aria-rowcount=${total + 1} aria-activedescendant=${total ? `row-${focus}` : null}
    onScroll=${(event) => setTop(event.target.scrollTop)} onKeyDown=${key}>
    <div role="rowgroup" class="head"><div role="row" aria-rowindex="1" class="row">${header}</div></div>
    <div class="canvas" role="rowgroup" style=${{ height: `${total * rowHeight}px` }}>${shown}
      ${data.total === 0 && html`<div role="row" aria-rowindex="2"><p role="gridcell" class="quiet">${empty}</p></div>`}</div>
  </div>`;
}

// --- doing it again and again until it is done: shows how far it is, can be stopped, and says where it stopped

export function useRun() {
  const [state, set] = useState(null);
  const stopped = useRef(false);
  const run = useCallback(async (label, total, step) => {
    stopped.current = false;
    let done = 0;
    set({ label, done, total, running: true });
    try {
      while (!stopped.current) {
        const more = await step();
        done += more.done;
        set({ label, done, total: Math.max(total, done), running: true });
        if (more.finished) break;
      }
      set({ label, done, total: Math.max(total, done), running: false, stopped: stopped.current });
      return { done, stopped: stopped.current };
    } catch (error) {
      set({ label, done, total, running: false, error: error.short ?? error.message });
      throw error;
    }
  }, []);
  const stop = useCallback(() => {
    stopped.current = true;
  }, []);
  return [state, run, stop, () => set(null)];
}

export function RunState({ state, stop, forget }) {
  if (!state) return null;
  const word = state.running ? "…" : state.error ? ` – stopped by an error: ${state.error} What is done is done; start again to go on.` : state.stopped ? " – stopped; start again to go on." : " – done.";
  return html`<div class="run" data-running=${state.running}>
    <${Progress} label=${`${state.label}: ${state.done.toLocaleString("en")} of ${state.total.toLocaleString("en")}${word}`} done=${state.done} total=${state.total} />
    ${state.running ? html`<button onClick=${stop}>Stop</button>` : html`<button class="plain" aria-label="Dismiss progress" onClick=${forget}>×</button>`}
  </div>`;
}

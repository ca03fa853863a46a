// The frame around all pages: who is logged in, which page the address names, and the stream of samples they share.
import { html, render, useEffect, useReducer, useRef, useState } from "./lib.js";
import { call, can, live, logout, onSession, session } from "./api.js";
import { Confirmation, Toasts, complain, say } from "./parts.js";
import { Login } from "./login.js";
import { Overview } from "./overview.js";
import { Entities } from "./entities.js";
import { EntityPage } from "./entity.js";
import { MESSAGE_PAGES } from "./messages.js";
import { SEND_PAGE } from "./send.js";
import { SESSION_PAGE } from "./sessions.js";
import { Outage } from "./outage.js";
import { Faults } from "./faults.js";
import { Connections } from "./connections.js";
import { Cluster } from "./cluster.js";
import { span } from "./format.js";

const SAMPLES = 3600;
const CLOCK_MS = 30000;

function route() {
  const [name = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return { name: name || "overview", rest: rest.map(decodeURIComponent) };
}

// The last hour and what comes; `beat` grows with each sample.
function useLive() {
  const [state, set] = useState({ now: null, history: null, beat: 0, lost: false });
  const history = useRef(null);
  useEffect(() => {
    if (!can("Listen")) return undefined;
    let stopped = false;
    let stop = () => {};
    const begin = async () => {
      const first = await call("GET", "overview");
      if (stopped) return;
      history.current = first.history;
      set((before) => ({ ...before, now: first, history: { ...first.history } }));
      stop = live((now) => {
        if (!now) return set((before) => ({ ...before, lost: true }));
        const kept = history.current;
        const last = kept.at_ms[kept.at_ms.length - 1];
        if (now.latest.at_ms) {
          for (const [name, column] of Object.entries(kept)) {
            if (now.latest.at_ms === last) column.pop(); // the same instant; other workers may have said more about it since
            column.push(now.latest[name]);
            if (column.length > SAMPLES) column.shift();
          }
        }
        return set((before) => ({ now, history: { ...kept }, beat: before.beat + 1, lost: false }));
      });
    };
    begin().catch(complain);
    return () => {
      stopped = true;
      stop();
    };
  }, [session?.token]);
  return state;
}

// Without Listen on the namespace there is no stream: pages look again by the clock.
function useBeat(streamed) {
  const [beat, more] = useReducer((number) => number + 1, 0);
  useEffect(() => {
    if (streamed) return undefined;
    const timer = setInterval(more, 1000);
    return () => clearInterval(timer);
  }, [streamed]);
  return beat;
}

function useTheme() {
  const [theme, set] = useState(() => localStorage.getItem("tandem-theme") ?? "");
  useEffect(() => {
    const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    if (theme) localStorage.setItem("tandem-theme", theme);
  }, [theme]);
  const turn = () => set(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  return turn;
}

const PAGES = [
  { name: "overview", label: "Overview", page: Overview, fits: () => can("Listen") },
  { name: "entities", label: "Entities", page: Entities, fits: () => true },
  { name: "outage", label: "Outage", page: Outage, fits: () => can("Listen") },
  { name: "cluster", label: "Cluster", page: Cluster, fits: () => can("Listen") && session.cluster },
  { name: "connections", label: "Connections", page: Connections, fits: () => can("Manage") },
  { name: "faults", label: "Faults", page: Faults, fits: () => can("Manage") && session.faults },
];
const ENTITY_PAGES = [...MESSAGE_PAGES, SESSION_PAGE, SEND_PAGE];

function Frame() {
  const [at, setAt] = useState(route);
  const streamed = can("Listen");
  const state = useLive();
  const beat = streamed ? state.beat : useBeat(streamed);
  const turn = useTheme();
  const main = useRef();
  useEffect(() => {
    const moved = () => {
      setAt(route());
      main.current?.focus();
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (Math.abs(session.clock_ms) > CLOCK_MS) say(`This computer's clock is ${span(Math.abs(session.clock_ms))} ${session.clock_ms < 0 ? "ahead of" : "behind"} the broker's. Times here are the broker's.`, "slow");
  }, []);
  useEffect(() => {
    document.title = `${at.rest[0] ?? at.name} – ${session?.namespace} – Tandem`;
  }, [at]);
  const pages = PAGES.filter((one) => one.fits());
  const known = pages.find((one) => one.name === at.name) ?? pages[0];
  const rights = [...new Set(session.grants.flatMap((one) => one.rights))].join(", ");
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/overview">Tandem <span>${session.namespace}</span></a>
      <nav aria-label="Pages">${pages.map((one) => html`<a href="#/${one.name}" aria-current=${at.name === one.name ? "page" : null} key=${one.name}>${one.label}</a>`)}</nav>
      <span class="who" title=${rights}>${session.name}</span>
      <button class="plain" aria-label="Dark or light" onClick=${turn}>◐</button>
      <button onClick=${logout}>Log out</button>
    </header>
    ${state.lost && html`<p class="lost" role="alert">The broker does not answer. What is shown is old; trying again…</p>`}
    <main id="main" ref=${main} tabindex="-1">
      ${at.name === "entity"
        ? html`<${EntityPage} path=${at.rest[0]} tab=${at.rest[1]} beat=${beat} pages=${ENTITY_PAGES} key=${at.rest[0]} />`
        : html`<${known.page} state=${state.now} history=${state.history} beat=${beat} />`}
    </main>
  </div>`;
}

function App() {
  const [, again] = useReducer((number) => number + 1, 0);
  useEffect(() => onSession(again), []);
  return html`${session ? html`<${Frame} key=${session.token} />` : html`<${Login} />`}<${Toasts} /><${Confirmation} />`;
}

render(html`<${App} />`, document.getElementById("app"));

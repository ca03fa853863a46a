// The only module that talks to the broker: who is logged in, calls with their token, and the stream of samples.
const KEPT = "tandem-session";
const listeners = new Set();
export let session = read();

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    return null;
  }
}

function keep(next) {
  session = next;
  if (next) sessionStorage.setItem(KEPT, JSON.stringify(next));
  else sessionStorage.removeItem(KEPT);
  for (const tell of listeners) tell();
}

export const onSession = (tell) => (listeners.add(tell), () => listeners.delete(tell));

export class ApiError extends Error {
  constructor(status, condition, description) {
    super(description);
    this.status = status;
    this.condition = condition;
  }
  get short() {
    return this.message.replace(/ ?(Reference:\S+, )?TrackingId:.*$/, "");
  }
}

async function request(method, what, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (session?.token) headers.Authorization = session.token.startsWith("SharedAccess") ? session.token : `Bearer ${session.token.replace(/^Bearer /i, "")}`;
  if (session?.namespace) headers["Tandem-Namespace"] = session.namespace;
  try {
    return await fetch(`/$tandem/${what}`, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "offline", "The broker does not answer. Nothing was changed by this request, or its answer was lost: look before you repeat it.");
  }
}

async function checked(response) {
  if (response.ok) return response;
  let told = {};
  try {
    told = await response.json();
  } catch {
    told = { description: `The broker answered with ${response.status}.` };
  }
  const error = new ApiError(response.status, told.error ?? "", told.description ?? "");
  if (error.condition === "com.microsoft:auth-failed" && session) {
    keep(null);
    sessionStorage.setItem("tandem-why", error.short);
  }
  throw error;
}

export async function call(method, what, body, signal) {
  const response = await checked(await request(method, `api/${what}`, body, signal));
  return response.json();
}

export const post = (what, body, signal) => call("POST", what, body, signal);

export async function page(method, what, body) {
  return (await checked(await request(method, what, body))).json();
}

export async function bytes(what, body) {
  return (await checked(await request("POST", `api/${what}`, body))).blob();
}

export async function login(given) {
  keep(null);
  const found = await call("POST", "login", given);
  found.clock_ms = found.now_ms - Date.now();
  keep(found);
  return found;
}

let left = false;
export const logout = () => {
  left = true;
  keep(null);
};
export const leftByHand = () => left;
export const whyLoggedOut = () => {
  const why = sessionStorage.getItem("tandem-why");
  sessionStorage.removeItem("tandem-why");
  return why;
};

// The broker's clock, whatever this computer's says.
export const now = () => Date.now() + (session?.clock_ms ?? 0);

export function can(right, path = "") {
  const folded = path.toLowerCase();
  return (session?.grants ?? []).some(
    (grant) => grant.rights.includes(right) && (!grant.path || folded === grant.path || folded.startsWith(`${grant.path}/`)),
  );
}

const SILENT_MS = 8000;

// Calls `tell(state)` for every sample, `tell(null)` while the broker does not answer; returns what ends it.
export function live(tell) {
  const stop = new AbortController();
  let pause = 500;
  const run = async () => {
    while (!stop.signal.aborted && session) {
      // A connection on which nothing comes any more is dead, whatever the network says: the broker is never silent for so long.
      const one = new AbortController();
      let silent;
      const heard = () => (clearTimeout(silent), (silent = setTimeout(() => one.abort(), SILENT_MS)));
      const end = () => one.abort();
      stop.signal.addEventListener("abort", end);
      try {
        heard();
        const response = await checked(await request("GET", "api/live", undefined, one.signal));
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          heard();
          rest += value;
          const events = rest.split("\n\n");
          rest = events.pop();
          for (const event of events) if (event.startsWith("data: ")) tell(JSON.parse(event.slice(6)));
          pause = 500;
        }
      } catch (error) {
        if (stop.signal.aborted || !session) return;
      } finally {
        clearTimeout(silent);
        stop.signal.removeEventListener("abort", end);
      }
      if (stop.signal.aborted) return;
      tell(null);
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, 8000);
    }
  };
  run();
  return () => stop.abort();
}

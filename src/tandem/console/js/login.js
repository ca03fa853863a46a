// Logging in with a connection string, a key or a token. The key goes to the broker once; the browser keeps a token, until its tab is closed.
import { html, useEffect, useState } from "./lib.js";
import { call, leftByHand, login, whyLoggedOut } from "./api.js";
import { Field } from "./parts.js";

const WAYS = [
  { value: "connection_string", label: "Connection string" },
  { value: "key", label: "Name and value of a key" },
  { value: "token", label: "Token" },
];

export function Login() {
  const [way, setWay] = useState("connection_string");
  const [given, setGiven] = useState({});
  const [wrong, setWrong] = useState(() => whyLoggedOut() ?? "");
  const [dev, setDev] = useState(false);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const ask = async () => {
      const told = await call("GET", "login");
      setDev(told.dev);
      if (told.dev && !leftByHand()) enter({}); // everybody knows its key
    };
    ask().catch((error) => setWrong(error.short ?? error.message));
  }, []);
  const set = (name) => (value) => setGiven({ ...given, [name]: value });
  const enter = async (body) => {
    setBusy(true);
    setWrong("");
    try {
      await login(body);
    } catch (error) {
      setWrong(error.short ?? error.message);
      setBusy(false);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    const names = { connection_string: ["connection_string"], key: ["key_name", "key", "path"], token: ["token"] }[way];
    enter(Object.fromEntries(names.filter((name) => given[name]).map((name) => [name, given[name]])));
  };
  return html`<main class="login">
    <form onSubmit=${submit}>
      <h1>Tandem</h1>
      <${Field} label="Log in with" value=${way} onInput=${setWay} options=${WAYS} />
      ${way === "connection_string" &&
      html`<${Field} label="Connection string" type="password" value=${given.connection_string ?? ""} onInput=${set("connection_string")} required
        hint="Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…" />`}
      ${way === "key" &&
      html`<${Field} label="Key name" value=${given.key_name ?? ""} onInput=${set("key_name")} required />
        <${Field} label="Key" type="password" value=${given.key ?? ""} onInput=${set("key")} required />
        <${Field} label="Entity" value=${given.path ?? ""} onInput=${set("path")} hint="Only if the key belongs to one queue or topic." />`}
      ${way === "token" && html`<${Field} label="Token" rows=${4} value=${given.token ?? ""} onInput=${set("token")} required hint="SharedAccessSignature …, or a token that an issuer gave." />`}
      ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
      <button class="primary" disabled=${busy}>Log in</button>
      ${dev && html`<button type="button" disabled=${busy} onClick=${() => enter({})}>Continue without: this is a development broker</button>`}
    </form>
  </main>`;
}

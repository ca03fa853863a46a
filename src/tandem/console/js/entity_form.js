// A form for queues, topics, subscriptions and relays: the broker checks what is asked for, and says what it allows.
import { html, useState } from "./lib.js";
import { call } from "./api.js";
import { Dialog, Field, say } from "./parts.js";
import { milliseconds, spanText } from "./format.js";

const FOREVER = 922337203685477;
const SPAN = (name, label, value) => ({ name, label, kind: "span", value });
const FLAG = (name, label, value = false) => ({ name, label, kind: "flag", value });
const TEXT = (name, label, hint) => ({ name, label, kind: "text", value: null, hint });
const NUMBER = (name, label, value) => ({ name, label, kind: "number", value });
const STATUS = { name: "status", label: "Status", kind: "choice", value: "Active", options: ["Active", "Disabled", "SendDisabled", "ReceiveDisabled"] };

export const FIELDS = {
  queue: [
    STATUS,
    SPAN("lock_duration_ms", "Lock duration", 60000),
    NUMBER("max_delivery_count", "Deliveries at most", 10),
    SPAN("default_message_time_to_live_ms", "Time to live", FOREVER),
    FLAG("dead_lettering_on_message_expiration", "Dead-letter what expires"),
    NUMBER("max_size_megabytes", "Size at most (MiB)", 1024),
    FLAG("requires_session", "Requires sessions"),
    FLAG("requires_duplicate_detection", "Detects duplicates"),
    SPAN("duplicate_detection_history_ms", "Duplicate detection window", 600000),
    FLAG("enable_partitioning", "Partitioned"),
    TEXT("forward_to", "Forward to"),
    TEXT("forward_dead_lettered_messages_to", "Forward dead letters to"),
    SPAN("auto_delete_on_idle_ms", "Delete when idle", FOREVER),
    TEXT("user_metadata", "Notes"),
  ],
  topic: [
    STATUS,
    SPAN("default_message_time_to_live_ms", "Time to live", FOREVER),
    NUMBER("max_size_megabytes", "Size at most (MiB)", 1024),
    FLAG("requires_duplicate_detection", "Detects duplicates"),
    SPAN("duplicate_detection_history_ms", "Duplicate detection window", 600000),
    FLAG("enable_partitioning", "Partitioned"),
    SPAN("auto_delete_on_idle_ms", "Delete when idle", FOREVER),
    TEXT("user_metadata", "Notes"),
  ],
  subscription: [
    STATUS,
    SPAN("lock_duration_ms", "Lock duration", 60000),
    NUMBER("max_delivery_count", "Deliveries at most", 10),
    SPAN("default_message_time_to_live_ms", "Time to live", FOREVER),
    FLAG("dead_lettering_on_message_expiration", "Dead-letter what expires"),
    FLAG("dead_lettering_on_filter_evaluation_exceptions", "Dead-letter what filters fail on", true),
    FLAG("requires_session", "Requires sessions"),
    TEXT("forward_to", "Forward to"),
    TEXT("forward_dead_lettered_messages_to", "Forward dead letters to"),
    SPAN("auto_delete_on_idle_ms", "Delete when idle", FOREVER),
    TEXT("user_metadata", "Notes"),
  ],
  relay: [FLAG("requires_client_authorization", "Senders need a token", true), TEXT("user_metadata", "Notes")],
};
const FIXED = new Set(["requires_session", "requires_duplicate_detection", "enable_partitioning"]);

const shown = (field, value) => (field.kind === "span" ? spanText(value ?? field.value) : (value ?? field.value ?? ""));

function read(field, text) {
  if (field.kind === "span") {
    const ms = milliseconds(text);
    if (ms === null) throw new Error(`${field.label}: write it like 30s, 5m, 2h, 7d or "for ever"`);
    return ms;
  }
  if (field.kind === "number") {
    if (!/^\d+$/.test(String(text).trim())) throw new Error(`${field.label}: a whole number is needed`);
    return Number(text);
  }
  return field.kind === "text" ? String(text).trim() || null : text;
}

export function EntityForm({ create, entity, topic, onClose, onDone }) {
  const [kind, setKind] = useState(entity?.kind ?? (topic ? "subscription" : "queue"));
  const [path, setPath] = useState(entity?.path ?? (topic ? `${topic}/Subscriptions/` : ""));
  const [values, setValues] = useState(() => ({ ...entity?.description }));
  const [texts, setTexts] = useState({});
  const [wrong, setWrong] = useState("");
  const fields = FIELDS[kind];
  const submit = async (event) => {
    event.preventDefault();
    try {
      const description = {};
      for (const field of fields) {
        if (field.name in texts) description[field.name] = read(field, texts[field.name]);
      }
      if (kind === "relay") for (const name of Object.keys(description)) if (description[name] === null) delete description[name];
      const found = await call("PUT", "entity", { kind, path: path.trim().replace(/^\/|\/$/g, ""), description, create: Boolean(create) });
      say(create ? `${kind} ${found.path} created` : `${found.path} changed`);
      onDone(found);
    } catch (error) {
      setWrong(error.short ?? error.message);
    }
  };
  const change = (field) => (value) => setTexts({ ...texts, [field.name]: value });
  return html`<${Dialog} title=${create ? "Create an entity" : `Change ${path}`} onClose=${onClose} wide>
    <form onSubmit=${submit} class="grid">
      ${create && html`<${Field} label="Kind" value=${kind} onInput=${(next) => (setKind(next), setTexts({}))} options=${["queue", "topic", "subscription", "relay"]} />
        <${Field} label=${kind === "subscription" ? "Path (topic/Subscriptions/name)" : "Name"} value=${path} onInput=${setPath} required />`}
      ${fields.map((field) => {
        const value = texts[field.name] ?? shown(field, values[field.name]);
        const common = { key: kind + field.name, label: field.label, onInput: change(field), hint: field.hint, disabled: !create && FIXED.has(field.name) };
        if (field.kind === "flag") return html`<${Field} ...${common} type="checkbox" value=${Boolean(value)} />`;
        if (field.kind === "choice") return html`<${Field} ...${common} options=${field.options} value=${value} />`;
        return html`<${Field} ...${common} value=${value} />`;
      })}
      ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
      <footer><button type="button" onClick=${onClose}>Cancel</button><button class="primary">${create ? "Create" : "Save"}</button></footer>
    </form>
  </${Dialog}>`;
}

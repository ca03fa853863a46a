"use strict";
// Knows only the HTTP API: /$tandem/health and /$tandem/metrics. Who may see this page may read them: the browser sends the same credential.
const STATES = ["active", "locked", "deferred", "scheduled", "leased"];
const history = new Map();

const element = (name, text, data = {}) => {
  const node = document.createElement(name);
  node.textContent = text;
  Object.assign(node.dataset, data);
  return node;
};

function counts(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = line.match(/^tandem_messages\{entity="([^"]*)",namespace="([^"]*)",state="([^"]*)"\} (\d+)(?:\.0)?$/);
    if (!match) continue;
    const [, entity, namespace, state, value] = match;
    const key = `${namespace}\n${entity}`;
    if (!found.has(key)) found.set(key, { namespace, entity });
    found.get(key)[state] = Number(value);
  }
  return [...found.values()];
}

function spark(values) {
  const most = Math.max(1, ...values);
  const points = values.map((value, at) => `${at * 2},${22 - (value / most) * 20}`).join(" ");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", "120");
  svg.setAttribute("height", "24");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points);
  svg.append(line);
  return svg;
}

function row(one) {
  const key = `${one.namespace}\n${one.entity}`;
  const seen = history.get(key) ?? [];
  seen.push(one.active);
  history.set(key, seen.slice(-60));
  const line = document.createElement("tr");
  line.append(element("td", one.entity), ...STATES.map((state) => element("td", String(one[state] ?? 0))));
  const last = document.createElement("td");
  last.append(spark(history.get(key)));
  line.append(last);
  return line;
}

function section(namespace, entities) {
  const part = document.getElementById("namespace").content.cloneNode(true);
  part.querySelector("h2").textContent = namespace.name;
  part.querySelector(".connections").textContent = `${namespace.connections} connections`;
  for (const store of namespace.stores) {
    const item = element("li", `${store.name} ${store.state}`, { state: store.state });
    for (const line of [store.cause, ...store.notes]) if (line) item.append(element("small", line));
    part.querySelector(".stores").append(item);
  }
  for (const fault of namespace.faults) {
    part.querySelector(".faults").append(element("li", `fault ${fault.id}: ${fault.kind} ${fault.entity ?? fault.store ?? ""}`));
  }
  const busy = (one) => STATES.some((state) => one[state] > 0);
  const shown = entities.filter((one) => one.namespace === namespace.name && (!one.entity.includes("/$") || busy(one)));
  shown.sort((a, b) => b.active - a.active || a.entity.localeCompare(b.entity));
  part.querySelector("tbody").append(...shown.slice(0, 500).map(row));
  return part;
}

async function refresh() {
  const status = document.getElementById("status");
  try {
    const [health, metrics] = await Promise.all([fetch("/$tandem/health"), fetch("/$tandem/metrics")]);
    if (!metrics.ok) throw new Error(`metrics: ${metrics.status}`);
    const told = await health.json();
    const entities = counts(await metrics.text());
    status.textContent = told.status;
    status.dataset.state = told.status;
    document.getElementById("namespaces").replaceChildren(...told.namespaces.map((one) => section(one, entities)));
  } catch (error) {
    status.textContent = "the broker does not answer";
    status.dataset.state = "gone";
  }
  setTimeout(refresh, 1000);
}

refresh();

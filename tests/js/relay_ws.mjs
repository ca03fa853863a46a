// The unmodified hyco-ws as a listener that echoes, or as a sender; driven by its environment, reports one JSON value per line.
import { createRequire } from "node:module";
const WebSocket = createRequire(import.meta.url)("hyco-ws");
const say = (event, more = {}) => process.stdout.write(JSON.stringify({ event, ...more }) + "\n");
const { ROLE, HOST, RELAY_PATH, KEY_NAME, KEY, SUFFIX = "", SCHEME = "ws" } = process.env;
const uri = (action) => `${SCHEME}://${HOST}/$hc/${RELAY_PATH}${SUFFIX}?sb-hc-action=${action}&sb-hc-id=js`;
const token = (action) => WebSocket.createRelayToken(uri(action), KEY_NAME, KEY);

if (ROLE === "listener") {
  const server = WebSocket.createRelayedServer({ server: uri("listen"), token: () => token("listen") }, (socket) => {
    say("connection", { protocol: socket.protocol });
    socket.onmessage = (event) => socket.send(event.data);
    socket.onclose = (event) => say("closed", { code: event.code, reason: event.reason });
  });
  server.on("listening", () => say("listening"));
  server.on("error", (error) => say("error", { message: String(error.message || error) }));
} else {
  const socket = WebSocket.relayedConnect(uri("connect"), token("connect"));
  socket.on("open", () => {
    say("open");
    socket.send("text über Grenzen");
    socket.send(Buffer.alloc(300_000, 7));
  });
  let count = 0;
  socket.on("message", (data) => {
    const text = typeof data === "string";
    say("message", text ? { text: data } : { bytes: data.length, ok: data.every((byte) => byte === 7) });
    if (++count === 2) socket.close(1000, "done");
  });
  socket.on("close", (code, reason) => say("closed", { code, reason }));
  socket.on("error", (error) => say("error", { message: String(error.message || error) }));
}

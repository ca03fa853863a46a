// The unmodified hyco-https as a listener; what it does depends on the path. Reports one JSON value per line.
import { createRequire } from "node:module";
const https = createRequire(import.meta.url)("hyco-https");
const say = (event, more = {}) => process.stdout.write(JSON.stringify({ event, ...more }) + "\n");
const { HOST, RELAY_PATH, KEY_NAME, KEY, SCHEME = "ws" } = process.env;
const uri = `${SCHEME}://${HOST}/$hc/${RELAY_PATH}?sb-hc-action=listen`;

const server = https.createRelayedServer({ server: uri, token: () => https.createRelayToken(uri, KEY_NAME, KEY) }, (req, res) => {
  const parts = [];
  req.on("data", (chunk) => parts.push(Buffer.from(chunk)));
  req.on("end", () => {
    const body = Buffer.concat(parts);
    const what = req.url.split("?")[0].split("/").pop();
    if (what === "empty") {
      res.statusCode = 204;
      res.end();
    } else if (what === "large") {
      res.setHeader("Content-Type", "application/octet-stream");
      res.end(Buffer.alloc(3_000_000, 5));
    } else if (what === "pieces") {
      for (let i = 0; i < 40; i++) res.write(Buffer.alloc(10_000, i));
      res.end();
    } else {
      res.statusCode = 201;
      res.statusMessage = "Made";
      res.setHeader("X-Answer", "42");
      const told = { method: req.method, url: req.url, headers: req.headers, bytes: body.length, sum: body.reduce((a, b) => a + b, 0) };
      res.end(JSON.stringify(told));
    }
  });
});
server.listen((error) => error && say("error", { message: String(error) }));
server.on("listening", () => say("listening"));
server.on("error", (error) => say("error", { message: String(error.message || error) }));

// The tests that hyco-https brings along, unmodified, one after the other. They insist on port 443 and on Jest: connections to 443 go to PORT,
// and what they use of Jest is here. Reports one JSON value per test.
import { createRequire } from "node:module";
import { readdirSync } from "node:fs";
import { dirname, join } from "node:path";
const require = createRequire(import.meta.url);
const tls = require("node:tls");
const connect = tls.connect;
tls.connect = (options, ...rest) => connect({ ...options, port: Number(options.port) === 443 ? Number(process.env.PORT) : options.port }, ...rest);

const tests = [];
let seconds = 5;
let fail = () => {};
const must = (ok, words) => {
  if (!ok) {
    const error = new Error(words);
    fail(error);
    throw error;
  }
};
const shown = (value) => String(value).slice(0, 60);
globalThis.test = (name, body) => tests.push({ name, body });
globalThis.describe = (name, body) => body();
globalThis.jest = { setTimeout: (ms) => (seconds = ms / 1000), clearAllTimers: () => {} };
globalThis.expect = (found) => ({
  toBe: (wanted) => must(Object.is(found, wanted), `${shown(found)} is not ${shown(wanted)}`),
  toBeDefined: () => must(found !== undefined, "is undefined"),
  toBeUndefined: () => must(found === undefined, `${shown(found)} is not undefined`),
});
process.on("uncaughtException", (error) => fail(error));

const directory = join(dirname(require.resolve("hyco-https/package.json")), "tests");
for (const file of readdirSync(directory).sort()) require(join(directory, file));
for (const { name, body } of tests) {
  const outcome = await new Promise((resolve) => {
    const late = setTimeout(() => resolve("did not end"), 4 * seconds * 1000);
    fail = (error) => (clearTimeout(late), resolve(String(error.message || error)));
    try {
      body((error) => (error ? fail(error) : (clearTimeout(late), resolve(""))));
    } catch (error) {
      fail(error);
    }
  });
  process.stdout.write(JSON.stringify({ event: "test", name, outcome }) + "\n");
}
process.stdout.write(JSON.stringify({ event: "end" }) + "\n");
process.exit(0);

// Stories told with the unmodified JavaScript client. Usage: node messaging.mjs <story> <connection string> <entity>
// Prints what it saw as JSON; what it should have seen is up to the test that runs it.
import { createRequire } from "node:module";
const require = createRequire(import.meta.url);
const { ServiceBusClient, ServiceBusAdministrationClient, delay } = require("@azure/service-bus");
const WebSocket = require("ws");

const [, , story, connectionString, entity] = process.argv;
const retryOptions = { maxRetries: 0, timeoutInMs: 20000 };

const seen = (message) => ({
  body: message.body,
  id: message.messageId,
  subject: message.subject,
  properties: message.applicationProperties,
  deliveryCount: message.deliveryCount,
  session: message.sessionId,
  number: Number(message.sequenceNumber),
  state: message.state,
  reason: message.deadLetterReason,
  description: message.deadLetterErrorDescription,
  lock: typeof message.lockToken,
  enqueued: message.enqueuedTimeUtc instanceof Date,
});
const failure = async (work) => {
  try {
    await work();
    return null;
  } catch (error) {
    return { code: error.code ?? error.name, retryable: error.retryable ?? null, message: String(error.message) };
  }
};
const bodies = (messages) => messages.map((message) => message.body);

async function receiveAll(receiver, count) {
  const found = [];
  while (found.length < count) {
    const some = await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs: 10000 });
    if (some.length === 0) break;
    found.push(...some);
  }
  return found;
}

const stories = {
  async send_and_receive(client) {
    const sender = client.createSender(entity);
    await sender.sendMessages({
      body: { order: 5, lines: ["a", "b"] },
      messageId: "m1",
      subject: "created",
      correlationId: "c1",
      contentType: "application/json",
      timeToLive: 60000,
      applicationProperties: { text: "t", number: 1.5, yes: true, when: new Date(0) },
    });
    await sender.sendMessages([{ body: "two" }, { body: Buffer.from("three") }]);
    const receiver = client.createReceiver(entity);
    const found = await receiveAll(receiver, 3);
    for (const message of found) await receiver.completeMessage(message);
    const empty = await receiver.receiveMessages(5, { maxWaitTimeInMs: 500 });
    return { found: found.map(seen), ttl: found[0].timeToLive, third: found[2].body.toString(), empty: empty.length };
  },

  async batch(client) {
    const sender = client.createSender(entity);
    const batch = await sender.createMessageBatch();
    let count = 0;
    while (count < 500 && batch.tryAddMessage({ body: `m${count}` })) count += 1;
    await sender.sendMessages(batch);
    const receiver = client.createReceiver(entity, { receiveMode: "receiveAndDelete" });
    const found = await receiveAll(receiver, 500);
    return { added: count, maxSize: batch.maxSizeInBytes, found: bodies(found) };
  },

  async subscribe(client) {
    const sender = client.createSender(entity);
    await sender.sendMessages(Array.from({ length: 25 }, (_, n) => ({ body: n })));
    const receiver = client.createReceiver(entity);
    const found = [];
    const errors = [];
    await new Promise((resolve) => {
      receiver.subscribe(
        {
          processMessage: async (message) => {
            found.push(message.body);
            if (found.length === 25) resolve();
          },
          processError: async (args) => errors.push(String(args.error.code ?? args.error)),
        },
        { maxConcurrentCalls: 5 },
      );
    });
    await delay(300);
    await receiver.close();
    const rest = await client.createReceiver(entity).peekMessages(10);
    return { found, errors, rest: rest.length };
  },

  async settle(client) {
    const sender = client.createSender(entity);
    await sender.sendMessages([{ body: "abandon" }, { body: "defer" }, { body: "dead" }]);
    const receiver = client.createReceiver(entity);
    const [abandon, defer, dead] = await receiveAll(receiver, 3);
    await receiver.renewMessageLock(defer);
    await receiver.abandonMessage(abandon, { tried: 1 });
    await receiver.deferMessage(defer);
    await receiver.deadLetterMessage(dead, { deadLetterReason: "bad", deadLetterErrorDescription: "very" });
    const [again] = await receiveAll(receiver, 1);
    await receiver.completeMessage(again);
    const [deferred] = await receiver.receiveDeferredMessages([defer.sequenceNumber]);
    await receiver.completeMessage(deferred);
    const twice = await failure(() => receiver.receiveDeferredMessages(defer.sequenceNumber));
    const letters = client.createReceiver(entity, { subQueueType: "deadLetter" });
    const [letter] = await receiveAll(letters, 1);
    await letters.completeMessage(letter);
    const settledTwice = await failure(() => letters.completeMessage(letter));
    return { again: seen(again), deferred: seen(deferred), letter: seen(letter), twice, settledTwice };
  },

  async peek_and_schedule(client) {
    const sender = client.createSender(entity);
    await sender.sendMessages([{ body: "one" }, { body: "two" }]);
    const at = new Date(Date.now() + 3600000);
    const numbers = await sender.scheduleMessages([{ body: "kept" }, { body: "cancelled" }], at);
    await sender.cancelScheduledMessages(numbers[1]);
    const soon = await sender.scheduleMessages({ body: "soon" }, new Date(Date.now() + 1000));
    const receiver = client.createReceiver(entity);
    const peeked = await receiver.peekMessages(10);
    const found = await receiveAll(receiver, 3);
    for (const message of found) await receiver.completeMessage(message);
    const unknown = await failure(() => sender.cancelScheduledMessages(numbers[1]));
    return { peeked: peeked.map(seen), found: bodies(found), numbers: numbers.length, soon: soon.length, unknown };
  },

  async resend(client) {
    const sender = client.createSender(entity);
    await sender.sendMessages({
      body: "again", messageId: "m", correlationId: "c", partitionKey: "key", subject: "s", to: "t", replyTo: "r", replyToSessionId: "rs",
      timeToLive: 60000, scheduledEnqueueTimeUtc: new Date(), applicationProperties: { text: "t", number: 1, when: new Date(0) },
    });
    const receiver = client.createReceiver(entity);
    const [first] = await receiveAll(receiver, 1);
    await receiver.completeMessage(first);
    await sender.sendMessages(first);
    const batch = await sender.createMessageBatch();
    batch.tryAddMessage(first);
    await sender.sendMessages(batch);
    await sender.sendMessages(first._rawAmqpMessage);
    const found = await receiveAll(receiver, 3);
    return { found: found.map(seen), keys: found.map((message) => message.partitionKey), ids: found.map((message) => message.correlationId) };
  },

  async sessions(client) {
    const sender = client.createSender(entity);
    await sender.sendMessages([
      { body: "a1", sessionId: "a" },
      { body: "b1", sessionId: "b" },
      { body: "a2", sessionId: "a" },
    ]);
    const first = await client.acceptSession(entity, "a");
    const until = first.sessionLockedUntilUtc instanceof Date;
    await first.setSessionState({ step: 1 });
    const state = await first.getSessionState();
    const held = await failure(() => client.acceptSession(entity, "a"));
    const inA = await receiveAll(first, 2);
    for (const message of inA) await first.completeMessage(message);
    await first.renewSessionLock();
    const next = await client.acceptNextSession(entity);
    const inNext = await receiveAll(next, 1);
    await next.deferMessage(inNext[0]);
    const [deferred] = await next.receiveDeferredMessages(inNext[0].sequenceNumber);
    await next.completeMessage(deferred);
    await first.close();
    await next.close();
    const impatient = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 2000 } });
    const none = await failure(() => impatient.acceptNextSession(entity));
    await impatient.close();
    const without = await failure(() => sender.sendMessages({ body: "no session" }));
    return { until, state, held, a: bodies(inA), next: next.sessionId, inNext: bodies(inNext), none, without };
  },

  async rules(client) {
    const [topic, subscription] = entity.split("/");
    const manager = client.createRuleManager(topic, subscription);
    const list = async () => {
      const found = [];
      for await (const rule of manager.listRules()) found.push(rule);
      return found;
    };
    const before = await list();
    await manager.createRule("sql", { sqlExpression: "region = 'eu'" }, { sqlExpression: "SET seen = 1" });
    await manager.createRule("correlated", { subject: "s", applicationProperties: { n: 1, t: "x" } });
    await manager.deleteRule("$Default");
    const after = await list();
    const duplicate = await failure(() => manager.createRule("sql", { sqlExpression: "1=1" }));
    const wrong = await failure(() => manager.createRule("wrong", { sqlExpression: "region = = 1" }));
    const missing = await failure(() => manager.deleteRule("nobody"));
    const sender = client.createSender(topic);
    await sender.sendMessages([
      { body: "us", applicationProperties: { region: "us" } },
      { body: "eu", applicationProperties: { region: "eu" } },
      { body: "both", subject: "s", applicationProperties: { region: "us", n: 1, t: "x" } },
    ]);
    const receiver = client.createReceiver(topic, subscription);
    const found = await receiveAll(receiver, 2);
    return { before, after, duplicate, wrong, missing, found: found.map(seen) };
  },

  async errors(client) {
    const nowhere = await failure(() => client.createSender("nowhere").sendMessages({ body: "x" }));
    const large = await failure(() => client.createSender(entity).sendMessages({ body: "x".repeat(300000) }));
    const bad = new ServiceBusClient(connectionString.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=wrong"), { retryOptions });
    const key = await failure(() => bad.createSender(entity).sendMessages({ body: "x" }));
    await bad.close();
    return { nowhere, large, key };
  },

  async administration(client) {
    const admin = new ServiceBusAdministrationClient(connectionString);
    const name = `${entity}-made`;
    await admin.createQueue(name, { lockDuration: "PT30S", forwardDeadLetteredMessagesTo: entity });
    await client.createSender(name).sendMessages([{ body: "one" }, { body: "two" }]);
    const receiver = client.createReceiver(name);
    const [one] = await receiveAll(receiver, 1);
    await receiver.deadLetterMessage(one);
    const [moved] = await receiveAll(client.createReceiver(entity), 1);
    const runtime = await admin.getQueueRuntimeProperties(name);
    const queue = await admin.getQueue(name);
    await receiver.close();
    await admin.deleteQueue(name);
    const names = [];
    for await (const found of admin.listQueues()) names.push(found.name);
    return {
      moved: moved.body,
      source: moved.deadLetterSource,
      active: runtime.activeMessageCount,
      lock: queue.lockDuration,
      forward: queue.forwardDeadLetteredMessagesTo,
      deleted: !names.includes(name),
    };
  },
};
stories.over_websocket = stories.send_and_receive;
stories.over_tls = stories.send_and_receive;

const options = { retryOptions };
if (story === "over_websocket") options.webSocketOptions = { webSocket: WebSocket };
const client = new ServiceBusClient(connectionString, options);
const result = await stories[story](client);
await client.close();
console.log(JSON.stringify(result));
process.exit(0);

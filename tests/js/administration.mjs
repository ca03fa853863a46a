// Administration with the official JavaScript client: argument 1 is the connection string. Prints what it saw as JSON.
import { ServiceBusAdministrationClient } from "@azure/service-bus";

const client = new ServiceBusAdministrationClient(process.argv[2], { retryOptions: { maxRetries: 0 } });
const seen = {};

async function refused(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return { code: error.code, status: error.statusCode, message: error.message };
  }
}

async function collect(pages, name) {
  const names = [];
  for await (const page of pages) for (const item of page) names.push(item[name]);
  return names;
}

const { _response: _n, ...namespace } = await client.getNamespaceProperties();
seen.namespace = namespace;

await client.createQueue("target");
const { _response: _q, ...queue } = await client.createQueue("a/queue", {
  lockDuration: "PT45S",
  maxSizeInMegabytes: 2048,
  requiresDuplicateDetection: true,
  defaultMessageTimeToLive: "P2D",
  deadLetteringOnMessageExpiration: true,
  duplicateDetectionHistoryTimeWindow: "PT1M",
  maxDeliveryCount: 8,
  enableBatchedOperations: false,
  status: "ReceiveDisabled",
  autoDeleteOnIdle: "PT1H",
  forwardDeadLetteredMessagesTo: "target",
  userMetadata: "<note>",
  authorizationRules: [
    { claimType: "SharedAccessKey", accessRights: ["Manage", "Send", "Listen"], keyName: "own", primaryKey: "p".repeat(44), secondaryKey: "s".repeat(44) },
  ],
});
seen.queue = queue;
const { _response: _u, ...updated } = await client.updateQueue({ ...queue, maxDeliveryCount: 3, forwardTo: "target" });
seen.updated = updated;
const { _response: _g, ...got } = await client.getQueue("a/queue");
seen.sameAfterUpdate = JSON.stringify(got) === JSON.stringify(updated);
const { _response: _r, ...runtime } = await client.getQueueRuntimeProperties("a/queue");
seen.runtime = runtime;
seen.duplicate = await refused(client.createQueue("A/QUEUE"));
seen.missing = await refused(client.getQueue("nowhere"));
seen.bad = await refused(client.createQueue("bad", { lockDuration: "PT10M" }));
seen.exists = [await client.queueExists("a/queue"), await client.queueExists("nowhere"), await client.topicExists("topic/1")];

for (let number = 0; number < 7; number++) await client.createQueue(`many-${number}`);
seen.queues = await collect(client.listQueues().byPage({ maxPageSize: 2 }), "name");
seen.queueCounts = await collect(client.listQueuesRuntimeProperties().byPage({ maxPageSize: 100 }), "totalMessageCount");

await client.createTopic("topic/1");
const { _response: _s, ...subscription } = await client.createSubscription("topic/1", "sub", {
  requiresSession: true,
  defaultRuleOptions: { name: "first", filter: { sqlExpression: "x = @p", sqlParameters: { "@p": 5 } } },
});
seen.subscription = subscription;
await client.createRule("topic/1", "sub", "correlated", {
  correlationId: "c",
  subject: "s",
  applicationProperties: { text: "t", number: 1.5, yes: true, when: new Date("2020-01-02T03:04:05.678Z") },
});
await client.createRule("topic/1", "sub", "acting", { sqlExpression: "1=1" }, { sqlExpression: "SET a = 1" });
seen.rules = [];
for await (const rule of client.listRules("topic/1", "sub")) seen.rules.push({ name: rule.name, filter: rule.filter, action: rule.action });
await client.updateRule("topic/1", "sub", { name: "acting", filter: { sqlExpression: "b > 2" }, action: {} });
seen.updatedRule = (await client.getRule("topic/1", "sub", "acting")).filter;
seen.subscriptions = await collect(client.listSubscriptions("topic/1").byPage({ maxPageSize: 1 }), "subscriptionName");
seen.topicRuntime = (await client.getTopicRuntimeProperties("topic/1")).subscriptionCount;
seen.subscriptionRuntime = (await client.getSubscriptionRuntimeProperties("topic/1", "sub")).activeMessageCount;
await client.deleteRule("topic/1", "sub", "acting");
await client.deleteSubscription("topic/1", "sub");
await client.deleteTopic("topic/1");
await client.deleteQueue("a/queue");
seen.gone = [await client.topicExists("topic/1"), await client.queueExists("a/queue")];

process.stdout.write(JSON.stringify(seen));

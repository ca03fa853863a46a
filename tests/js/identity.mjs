// The unmodified @azure/identity and Service Bus clients with an issuer of our own.
// Usage: node identity.mjs <authority> <tenant> <client id> <secret> <host:port> <queue>. Prints what it saw as JSON.
import { ClientSecretCredential } from "@azure/identity";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";

const [, , authorityHost, tenant, clientId, secret, host, queue] = process.argv;
const credential = new ClientSecretCredential(tenant, clientId, secret, { authorityHost, disableInstanceDiscovery: true });
const retryOptions = { maxRetries: 0, timeoutInMs: 20000 };
const seen = {};

const token = await credential.getToken("https://servicebus.azure.net/.default");
seen.minutes = Math.round((token.expiresOnTimestamp - Date.now()) / 60000);

const client = new ServiceBusClient(host, credential, { retryOptions });
await client.createSender(queue).sendMessages({ body: "from JavaScript" });
const receiver = client.createReceiver(queue);
const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 10000 });
await receiver.completeMessage(message);
seen.body = message.body;
await client.close();

const admin = new ServiceBusAdministrationClient(host, credential, { retryOptions });
await admin.createQueue("made-in-javascript");
const names = [];
for await (const found of admin.listQueues()) names.push(found.name);
seen.made = names.includes("made-in-javascript");

const stranger = new ClientSecretCredential(tenant, clientId, "wrong", { authorityHost, disableInstanceDiscovery: true });
try {
  await stranger.getToken("https://servicebus.azure.net/.default");
} catch (error) {
  seen.refused = error.message.includes("invalid_client");
}
console.log(JSON.stringify(seen));
process.exit(0);

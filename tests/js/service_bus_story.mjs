// The official JavaScript SDK: everything a queue does, once. Prints what it saw as JSON.
import { ServiceBusClient } from '@azure/service-bus';

const [connectionString, queue, sessions, short] = process.argv.slice(2);
const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
const seen = {};
const code = async (work) => { try { await work(); return 'no error'; } catch (error) { return error.code ?? String(error); } };
setTimeout(() => { console.error('too slow', JSON.stringify(seen)); process.exit(1); }, 100000).unref();

const sender = client.createSender(queue);
await sender.sendMessages({ body: 'single' });
const batch = await sender.createMessageBatch();
for (let n = 0; n < 3; n += 1) batch.tryAddMessage({ body: `batched ${n}` });
await sender.sendMessages(batch);

const receiver = client.createReceiver(queue);
const first = await receiver.receiveMessages(4, { maxWaitTimeInMs: 5000 });
seen.received = first.map((message) => message.body);
await receiver.abandonMessage(first[0], { tried: 1 });
await receiver.deferMessage(first[1]);
await receiver.deadLetterMessage(first[2], { deadLetterReason: 'because', deadLetterErrorDescription: 'of this' });
await receiver.completeMessage(first[3]);
const [again] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 5000 });
seen.abandoned = { body: again.body, deliveryCount: again.deliveryCount, properties: again.applicationProperties };
await receiver.completeMessage(again);
const [deferred] = await receiver.receiveDeferredMessages([first[1].sequenceNumber]);
seen.deferred = deferred.body;
await receiver.completeMessage(deferred);
const [dead] = await client.createReceiver(queue, { subQueueType: 'deadLetter', receiveMode: 'receiveAndDelete' }).receiveMessages(1, { maxWaitTimeInMs: 5000 });
seen.dead = { body: dead.body, reason: dead.deadLetterReason, description: dead.deadLetterErrorDescription };

const numbers = await sender.scheduleMessages([{ body: 'later' }, { body: 'cancelled' }], new Date(Date.now() + 3600000));
await sender.cancelScheduledMessages(numbers[1]);
seen.scheduled = (await receiver.peekMessages(10, { fromSequenceNumber: numbers[0] })).filter((m) => m.state === 'scheduled').map((m) => m.body);
await sender.cancelScheduledMessages(numbers[0]);
seen.emptyPeek = (await receiver.peekMessages(10)).length;
seen.emptyReceive = (await receiver.receiveMessages(3, { maxWaitTimeInMs: 300 })).length;
seen.tooLarge = await code(() => sender.sendMessages({ body: Buffer.alloc(256 * 1024) }));

const toSessions = client.createSender(sessions);
await toSessions.sendMessages([0, 1, 2].map((n) => ({ body: `s${n}`, sessionId: 'first' })));
const session = await client.acceptSession(sessions, 'first');
const inOrder = await session.receiveMessages(3, { maxWaitTimeInMs: 5000 });
seen.sessionOrder = inOrder.map((message) => message.body);
for (const message of inOrder) await session.completeMessage(message);
await session.setSessionState('kept');
seen.sessionState = String(await session.getSessionState());
await session.renewSessionLock();
seen.heldSession = await code(() => client.acceptSession(sessions, 'first'));
await toSessions.sendMessages({ body: 'x', sessionId: 'other' });
const next = await client.acceptNextSession(sessions);
seen.nextSession = next.sessionId;
const hurried = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 1500 } });
seen.noSession = await code(() => hurried.acceptNextSession(sessions));
await hurried.close();
await next.close();
await session.close();

const toShort = client.createSender(short);
await toShort.sendMessages({ body: 'renew me' });
const holder = client.createReceiver(short, { maxAutoLockRenewalDurationInMs: 0 });
const [held] = await holder.receiveMessages(1, { maxWaitTimeInMs: 5000 });
const before = held.lockedUntilUtc.getTime();
await new Promise((resolve) => setTimeout(resolve, 50));
seen.lockRenewed = (await holder.renewMessageLock(held)).getTime() > before;
await holder.completeMessage(held);

seen.subscribed = [];
const streaming = client.createReceiver(queue);
const all = new Promise((resolve, reject) => {
  streaming.subscribe({
    processMessage: async (message) => { seen.subscribed.push(message.body); if (seen.subscribed.length === 3) resolve(); },
    processError: async (args) => reject(args.error),
  });
});
await sender.sendMessages([0, 1, 2].map((n) => ({ body: `streamed ${n}` })));
await all;
await streaming.close();

seen.missing = await code(() => client.createReceiver('no-such-queue').receiveMessages(1, { maxWaitTimeInMs: 2000 }));
await client.close();
console.log(JSON.stringify(seen));
process.exit(0);

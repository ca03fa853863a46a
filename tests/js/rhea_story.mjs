// A client that knows AMQP and nothing of Service Bus: sends, receives, settles, drains, is refused. Prints what it saw as JSON.
// With a sub-protocol as its last argument it speaks through a WebSocket.
import rhea from 'rhea';
import WebSocket from 'ws';

const [port, queue, , user, password, subProtocol] = process.argv.slice(2);
const container = rhea.create_container();
const throughWebSocket = () => ({ connection_details: container.websocket_connect(WebSocket)(`ws://localhost:${port}/$servicebus/websocket`, [subProtocol], {}) });
const where = subProtocol ? throughWebSocket() : { host: 'localhost', port: Number(port) };
const connection = container.connect({ ...where, username: user, password, reconnect: false });
const seen = { accepted: 0, received: [], again: null, drained: false, refused: null };

const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));
const fail = (what) => (context) => {
  console.error(what, String(context.error ?? context.connection?.error ?? context.receiver?.error ?? context.sender?.error));
  process.exit(1);
};
container.on('connection_error', fail('connection error'));
container.on('disconnected', (context) => { if (context.error) fail('disconnected')(context); });
setTimeout(() => { console.error('too slow', JSON.stringify(seen)); process.exit(1); }, 60000).unref();

const sender = connection.open_sender(queue);
sender.on('accepted', () => { seen.accepted += 1; sender.emit('counted'); });
await once(sender, 'sendable');
for (let n = 0; n < 10; n += 1) sender.send({ message_id: `id ${n}`, body: rhea.message.data_section(Buffer.from(`message ${n}`)) });
while (seen.accepted < 10) await once(sender, 'counted');

const text = (message) => Buffer.from(message.body.content ?? message.body).toString();
const receiver = connection.open_receiver({ source: { address: queue }, autoaccept: false, credit_window: 0, snd_settle_mode: 0, rcv_settle_mode: 0 });
const deliveries = [];
receiver.on('message', (context) => { deliveries.push(context); receiver.emit('arrived'); });
await once(receiver, 'receiver_open');
receiver.add_credit(10);
while (deliveries.length < 10) await once(receiver, 'arrived');
seen.received = deliveries.map((context) => text(context.message));
deliveries.slice(0, 8).forEach((context) => context.delivery.accept());
deliveries[8].delivery.reject({ condition: 'app:unreadable', description: 'cannot read it' });
deliveries[9].delivery.modified({ delivery_failed: true, undeliverable_here: false });
receiver.add_credit(1);
while (deliveries.length < 11) await once(receiver, 'arrived');
seen.again = { body: text(deliveries[10].message), delivery_count: deliveries[10].message.delivery_count };
deliveries[10].delivery.accept();

receiver.drain = true;
receiver.add_credit(5);
await once(receiver, 'receiver_drained');
seen.drained = true;

const stray = connection.open_receiver('no-such-queue');
await once(stray, 'receiver_error');
seen.refused = { condition: stray.error.condition, description: stray.error.description };

connection.close();
await once(connection, 'connection_close');
console.log(JSON.stringify(seen));
process.exit(0);

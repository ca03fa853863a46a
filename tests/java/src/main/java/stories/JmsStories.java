package stories;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.qpid.jms.JmsConnectionFactory;

/** `JmsStories <key name> <key> <host:port>`: Apache Qpid JMS as its users use it. */
public final class JmsStories {
    private static final long PATIENCE_MS = 20_000;
    private static String keyName;
    private static String key;
    private static String address;

    private interface Work {
        Object in(Connection connection) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        keyName = args[0];
        key = args[1];
        address = args[2];
        Stories stories = new Stories();
        stories.add("send_and_receive", () -> connected("amqp://" + address, c -> sendAndReceive(c, "plain")));
        stories.add("over_tls", () -> connected("amqps://" + address, c -> sendAndReceive(c, "tls")));
        stories.add("over_websocket", () -> connected("amqpws://" + address + "/$servicebus/websocket", c -> sendAndReceive(c, "websocket")));
        stories.add("committed", () -> connected("amqp://" + address, JmsStories::committed));
        stories.add("rolled_back", () -> connected("amqp://" + address, JmsStories::rolledBack));
        stories.add("recovered", () -> connected("amqp://" + address, JmsStories::recovered));
        stories.add("delayed", () -> connected("amqp://" + address, JmsStories::delayed));
        stories.add("selected", () -> connected("amqp://" + address, JmsStories::selected));
        stories.add("browsed", () -> connected("amqp://" + address, JmsStories::browsed));
        stories.add("refused", () -> connected("amqp://" + address, JmsStories::refused));
        stories.add("subscription", () -> connected("amqp://" + address, JmsStories::subscription));
        stories.add("durable", () -> connected("amqp://" + address, JmsStories::durable));
        stories.add("shared", () -> connected("amqp://" + address, JmsStories::shared));
        stories.add("grouped", () -> connected("amqp://" + address, JmsStories::grouped));
        stories.tellAll();
    }

    private static Object connected(String uri, Work work) throws Exception {
        Connection connection = new JmsConnectionFactory(keyName, key, uri).createConnection();
        try {
            connection.start();
            return work.in(connection);
        } finally {
            connection.close();
        }
    }

    private static void send(Session session, String queue, String... texts) throws JMSException {
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        for (String text : texts) {
            producer.send(session.createTextMessage(text));
        }
        producer.close();
    }

    private static String text(Message message) throws JMSException {
        return message == null ? null : ((TextMessage) message).getText();
    }

    private static Object sendAndReceive(Connection connection, String queue) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        send(session, queue, "one", "two");
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
        return List.of(text(consumer.receive(PATIENCE_MS)), text(consumer.receive(PATIENCE_MS)));
    }

    private static Object committed(Connection connection) throws JMSException {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        send(session, "commit-in", "order");
        session.commit();
        MessageConsumer consumer = session.createConsumer(session.createQueue("commit-in"));
        String order = text(consumer.receive(PATIENCE_MS));
        send(session, "commit-out", order + " done");
        session.commit();
        Session other = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Message rest = other.createConsumer(other.createQueue("commit-in")).receiveNoWait();
        String done = text(other.createConsumer(other.createQueue("commit-out")).receive(PATIENCE_MS));
        return List.of(order, done, rest == null);
    }

    /** The lock of the queue lasts five minutes: whatever comes again within the patience was given back. */
    private static Object rolledBack(Connection connection) throws JMSException {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        send(session, "rollback", "one", "two");
        session.commit();
        MessageConsumer consumer = session.createConsumer(session.createQueue("rollback"));
        List<Object> seen = new ArrayList<>();
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < 2; i++) {
                Message message = consumer.receive(PATIENCE_MS);
                seen.add(List.of(String.valueOf(text(message)), message.getIntProperty("JMSXDeliveryCount"), message.getJMSRedelivered()));
            }
            if (round == 0) {
                session.rollback();
            } else {
                session.commit();
            }
        }
        consumer.close();
        Session other = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        seen.add(other.createConsumer(other.createQueue("rollback")).receiveNoWait() == null);
        return seen;
    }

    private static Object recovered(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        send(session, "recover", "one");
        MessageConsumer consumer = session.createConsumer(session.createQueue("recover"));
        consumer.receive(PATIENCE_MS);
        session.recover();
        Message again = consumer.receive(PATIENCE_MS);
        again.acknowledge();
        return List.of(text(again), again.getJMSRedelivered());
    }

    private static Object delayed(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue("delay");
        MessageProducer producer = session.createProducer(queue);
        producer.setDeliveryDelay(2_000);
        long sent = System.currentTimeMillis();
        producer.send(session.createTextMessage("later"));
        producer.setDeliveryDelay(0);
        producer.send(session.createTextMessage("now"));
        MessageConsumer consumer = session.createConsumer(queue);
        String first = text(consumer.receive(PATIENCE_MS));
        Message second = consumer.receive(PATIENCE_MS);
        return List.of(first, text(second), System.currentTimeMillis() - sent >= 2_000, second.getJMSDeliveryTime() >= sent + 2_000);
    }

    /** One receiver per selector; what none of them wants is left for the one without. */
    private static Object selected(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue("select");
        MessageProducer producer = session.createProducer(queue);
        String id = null;
        for (int i = 0; i < 6; i++) {
            TextMessage message = session.createTextMessage("m" + i);
            message.setIntProperty("number", i);
            message.setStringProperty("color", i % 2 == 0 ? "red" : "blue");
            message.setJMSType(i == 5 ? "last" : "one of many");
            message.setJMSCorrelationID("order-" + i);
            producer.send(message, Message.DEFAULT_DELIVERY_MODE, i == 1 ? 9 : 4, 0);
            if (i == 0) {
                id = message.getJMSMessageID();
            }
        }
        Map<String, Object> seen = new LinkedHashMap<>();
        for (String selector : List.of(
            "JMSMessageID = '" + id + "'",
            "JMSPriority > 8 AND JMSTimestamp > 0",
            "JMSType LIKE 'l_st' AND JMSDeliveryMode = 'PERSISTENT'",
            "JMSCorrelationID IN ('order-2', 'order-x')",
            "color = 'red' AND number BETWEEN 3 AND 5")) {
            MessageConsumer consumer = session.createConsumer(queue, selector);
            seen.put(selector.equals("JMSMessageID = '" + id + "'") ? "JMSMessageID" : selector, text(consumer.receive(PATIENCE_MS)));
            seen.merge("more", consumer.receiveNoWait() == null, (before, now) -> (Boolean) before && (Boolean) now);
            consumer.close();
        }
        seen.put("rest", text(session.createConsumer(queue).receive(PATIENCE_MS)));
        seen.put("wrong", complaint(() -> session.createConsumer(queue, "color ==")));
        return seen;
    }

    private static Object browsed(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        send(session, "browse", "one", "two", "three");
        Queue queue = session.createQueue("browse");
        List<Object> seen = new ArrayList<>();
        QueueBrowser browser = session.createBrowser(queue);
        for (Object message : Collections.list(browser.getEnumeration())) {
            seen.add(text((Message) message));
        }
        browser.close();
        MessageConsumer consumer = session.createConsumer(queue);
        for (int i = 0; i < 3; i++) {
            seen.add(text(consumer.receive(PATIENCE_MS)));
        }
        return seen;
    }

    private static String complaint(Stories.Story story) {
        try {
            story.tell();
            return "";
        } catch (Exception error) {
            return Stories.describe(error);
        }
    }

    private static Object refused(Connection connection) throws Exception {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("temporary_queue", complaint(session::createTemporaryQueue));
        seen.put("temporary_topic", complaint(session::createTemporaryTopic));
        seen.put("topic", complaint(() -> session.createConsumer(session.createTopic("events"))));
        seen.put("shared", complaint(() -> session.createSharedConsumer(session.createTopic("events"), "mine")));
        Connection named = new JmsConnectionFactory(keyName, key, "amqp://" + address).createConnection();
        named.setClientID("shop");
        Session durable = named.createSession(false, Session.AUTO_ACKNOWLEDGE);
        seen.put("durable", complaint(() -> durable.createDurableSubscriber(durable.createTopic("events"), "mine")));
        named.close();
        seen.put("after", sendAndReceive(connection, "plain"));
        return seen;
    }

    private static Object subscription(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createTopic("events"));
        producer.send(session.createTextMessage("told"));
        return text(session.createConsumer(session.createQueue("events/Subscriptions/eu")).receive(PATIENCE_MS));
    }

    /** A subscriber with the name of an administrator's subscription; it is away while the second message is sent. */
    private static Object durable(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Topic topic = session.createTopic("durable-events");
        MessageProducer producer = session.createProducer(topic);
        List<Object> seen = new ArrayList<>();
        try (Connection named = new JmsConnectionFactory(keyName, key, "amqp://" + address).createConnection()) {
            named.setClientID("shop");
            named.start();
            Session own = named.createSession(false, Session.AUTO_ACKNOWLEDGE);
            for (String text : List.of("first", "second")) {
                producer.send(session.createTextMessage(text));
                MessageConsumer subscriber = own.createDurableSubscriber(topic, "eu");
                seen.add(text(subscriber.receive(PATIENCE_MS)));
                subscriber.close();
            }
            seen.add(complaint(() -> {
                own.unsubscribe("eu");
                return null;
            }));
        }
        return seen;
    }

    /** Two of one connection share a subscription: each message goes to one of them. */
    private static Object shared(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Topic topic = session.createTopic("shared-events");
        MessageConsumer durable = session.createSharedDurableConsumer(topic, "eu", "number = 1");
        MessageConsumer fleeting = session.createSharedConsumer(topic, "eu", "number = 2");
        MessageProducer producer = session.createProducer(topic);
        for (int number = 1; number <= 2; number++) {
            TextMessage message = session.createTextMessage("number " + number);
            message.setIntProperty("number", number);
            producer.send(message);
        }
        return List.of(text(fleeting.receive(PATIENCE_MS)), text(durable.receive(PATIENCE_MS)));
    }

    /** What JMS sends as a message group is a session to the client that can accept one; JMS itself is told why it cannot receive there. */
    private static Object grouped(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue("grouped"));
        BytesMessage message = session.createBytesMessage();
        message.writeBytes("of blue".getBytes(StandardCharsets.UTF_8));
        message.setStringProperty("JMSXGroupID", "blue");
        producer.send(message);
        String refused = complaint(() -> session.createConsumer(session.createQueue("grouped")));
        String endpoint = "Endpoint=sb://" + address + ";SharedAccessKeyName=" + keyName + ";SharedAccessKey=" + key;
        try (ServiceBusSessionReceiverClient acceptor = new ServiceBusClientBuilder()
            .connectionString(endpoint + ";UseDevelopmentEmulator=true").sessionReceiver().queueName("grouped").buildClient();
            ServiceBusReceiverClient blue = acceptor.acceptSession("blue")) {
            return List.of(blue.receiveMessages(1, Duration.ofMillis(PATIENCE_MS)).iterator().next().getBody().toString(), refused);
        }
    }
}

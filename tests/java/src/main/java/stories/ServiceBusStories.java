package stories;

import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.http.HttpPipelineCallContext;
import com.azure.core.http.HttpPipelineNextPolicy;
import com.azure.core.http.HttpPipelinePosition;
import com.azure.core.http.HttpResponse;
import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.util.UrlBuilder;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import reactor.core.publisher.Mono;

/** `ServiceBusStories <plain connection string> <connection string for TLS> <port>`: azure-messaging-servicebus as its users use it. */
public final class ServiceBusStories {
    private static final Duration PATIENCE = Duration.ofSeconds(20);
    private static String plain;
    private static String tls;
    private static int port;

    public static void main(String[] args) throws Exception {
        plain = args[0];
        tls = args[1];
        port = Integer.parseInt(args[2]);
        Stories stories = new Stories();
        stories.add("transaction_first", ServiceBusStories::transactionFirst);
        stories.add("transaction_rolled_back", ServiceBusStories::transactionRolledBack);
        stories.add("over_tls", () -> sendAndReceive(new ServiceBusClientBuilder().connectionString(tls), "tls"));
        stories.add("over_websocket", () -> sendAndReceive(
            new ServiceBusClientBuilder().connectionString(tls).transportType(AmqpTransportType.AMQP_WEB_SOCKETS), "websocket"));
        stories.add("administration", ServiceBusStories::administration);
        stories.add("sessions", ServiceBusStories::sessions);
        stories.add("session_processor", ServiceBusStories::sessionProcessor);
        stories.add("topics_and_rules", ServiceBusStories::topicsAndRules);
        stories.tellAll();
    }

    private static ServiceBusSenderClient sender(String queue) {
        return new ServiceBusClientBuilder().connectionString(plain).sender().queueName(queue).buildClient();
    }

    private static ServiceBusReceiverClient receiver(ServiceBusClientBuilder builder, String queue) {
        return builder.receiver().queueName(queue).receiveMode(ServiceBusReceiveMode.PEEK_LOCK).disableAutoComplete().buildClient();
    }

    private static List<String> bodies(ServiceBusReceiverClient receiver, int count) {
        List<String> found = new ArrayList<>();
        for (ServiceBusReceivedMessage message : receiver.receiveMessages(count, PATIENCE)) {
            found.add(message.getBody().toString());
            receiver.complete(message);
        }
        return found;
    }

    /** Declaring is the first thing on its connection: no token was put, no link attached before. */
    private static Object transactionFirst() {
        try (ServiceBusSenderClient sender = sender("transactions")) {
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("one"), transaction);
            sender.sendMessage(new ServiceBusMessage("two"), transaction);
            sender.commitTransaction(transaction);
        }
        try (ServiceBusReceiverClient receiver = receiver(new ServiceBusClientBuilder().connectionString(plain), "transactions")) {
            return bodies(receiver, 2);
        }
    }

    private static Object transactionRolledBack() {
        try (ServiceBusSenderClient sender = sender("rolled-back")) {
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("undone"), transaction);
            sender.rollbackTransaction(transaction);
            sender.sendMessage(new ServiceBusMessage("kept"));
        }
        try (ServiceBusReceiverClient receiver = receiver(new ServiceBusClientBuilder().connectionString(plain), "rolled-back")) {
            return bodies(receiver, 1);
        }
    }

    private static Object sendAndReceive(ServiceBusClientBuilder builder, String queue) {
        try (ServiceBusSenderClient sender = builder.sender().queueName(queue).buildClient();
            ServiceBusReceiverClient receiver = receiver(builder, queue)) {
            sender.sendMessage(new ServiceBusMessage("hello"));
            return bodies(receiver, 1);
        }
    }

    /** The administration client keeps only the host of its endpoint; this gives it back its port. */
    private static final class OnPort implements HttpPipelinePolicy {
        private final int port;

        OnPort(int port) {
            this.port = port;
        }

        @Override
        public Mono<HttpResponse> process(HttpPipelineCallContext context, HttpPipelineNextPolicy next) {
            context.getHttpRequest().setUrl(UrlBuilder.parse(context.getHttpRequest().getUrl()).setPort(port).toString());
            return next.process();
        }

        @Override
        public HttpPipelinePosition getPipelinePosition() {
            return HttpPipelinePosition.PER_CALL;
        }
    }

    private static ServiceBusAdministrationClient administrationClient() {
        return new ServiceBusAdministrationClientBuilder().connectionString(tls).addPolicy(new OnPort(port)).buildClient();
    }

    private static Object administration() {
        ServiceBusAdministrationClient client = administrationClient();
        client.createQueue("made-by-java");
        client.createQueue("forwarding", new CreateQueueOptions().setForwardTo("made-by-java"));
        String forward = client.updateQueue(client.getQueue("forwarding").setMaxDeliveryCount(3)).getForwardTo();
        client.deleteQueue("forwarding");
        boolean there = client.getQueueExists("made-by-java");
        String lock = client.getQueue("made-by-java").getLockDuration().toString();
        client.deleteQueue("made-by-java");
        return Map.of("there", there, "lock", lock, "forward", forward.replaceFirst(".*/", ""), "after", client.getQueueExists("made-by-java"));
    }

    private static ServiceBusMessage inSession(String session, String body) {
        return new ServiceBusMessage(body).setSessionId(session);
    }

    /** By id and the next one, with state, a renewed lock and a deferred message. */
    private static Object sessions() {
        try (ServiceBusSenderClient sender = sender("sessions")) {
            sender.sendMessages(List.of(inSession("blue", "b1"), inSession("blue", "b2"), inSession("green", "g1")));
        }
        ServiceBusClientBuilder builder = new ServiceBusClientBuilder().connectionString(plain);
        Map<String, Object> seen = new LinkedHashMap<>();
        try (ServiceBusSessionReceiverClient acceptor = builder.sessionReceiver().queueName("sessions").disableAutoComplete().buildClient()) {
            try (ServiceBusReceiverClient blue = acceptor.acceptSession("blue")) {
                blue.setSessionState("half way".getBytes(StandardCharsets.UTF_8));
                ServiceBusReceivedMessage first = blue.receiveMessages(1, PATIENCE).iterator().next();
                blue.defer(first);
                seen.put("renewed", blue.renewSessionLock().isAfter(OffsetDateTime.now()));
                try (ServiceBusReceiverClient next = acceptor.acceptNextSession()) {
                    seen.put("next", List.of(next.getSessionId(), bodies(next, 1)));
                }
                seen.put("held", bodies(blue, 1));
                ServiceBusReceivedMessage deferred = blue.receiveDeferredMessage(first.getSequenceNumber());
                seen.put("deferred", deferred.getBody().toString());
                blue.complete(deferred);
                seen.put("state", new String(blue.getSessionState(), StandardCharsets.UTF_8));
            }
        }
        return seen;
    }

    /** Two sessions at a time out of four, each in its order. */
    private static Object sessionProcessor() throws InterruptedException {
        try (ServiceBusSenderClient sender = sender("processed")) {
            for (int i = 0; i < 12; i++) {
                sender.sendMessage(inSession("s" + i % 4, String.valueOf(i / 4)));
            }
        }
        Map<String, String> seen = new ConcurrentSkipListMap<>();
        CountDownLatch all = new CountDownLatch(12);
        try (ServiceBusProcessorClient processor = new ServiceBusClientBuilder().connectionString(plain).sessionProcessor()
            .queueName("processed").maxConcurrentSessions(2).sessionIdleTimeout(Duration.ofSeconds(1))
            .processMessage(context -> {
                seen.merge(context.getMessage().getSessionId(), context.getMessage().getBody().toString(), String::concat);
                all.countDown();
            })
            .processError(context -> seen.merge("error", Stories.describe(context.getException()), String::concat))
            .buildProcessorClient()) {
            processor.start();
            seen.put("all", String.valueOf(all.await(PATIENCE.toSeconds(), TimeUnit.SECONDS)));
        }
        return seen;
    }

    /** Administration makes a topic and a subscription with a rule; the rule manager of the data plane changes the rules. */
    private static Object topicsAndRules() {
        ServiceBusAdministrationClient administration = administrationClient();
        administration.createTopic("java-events");
        administration.createSubscription("java-events", "eu", "large",
            new CreateSubscriptionOptions(), new CreateRuleOptions(new SqlRuleFilter("size > 10")));
        ServiceBusClientBuilder builder = new ServiceBusClientBuilder().connectionString(plain);
        Map<String, Object> seen = new LinkedHashMap<>();
        try (ServiceBusRuleManagerClient rules = builder.ruleManager().topicName("java-events").subscriptionName("eu").buildClient();
            ServiceBusSenderClient sender = builder.sender().topicName("java-events").buildClient();
            ServiceBusReceiverClient receiver =
                builder.receiver().topicName("java-events").subscriptionName("eu").disableAutoComplete().buildClient()) {
            CorrelationRuleFilter urgent = new CorrelationRuleFilter().setLabel("urgent");
            urgent.getProperties().put("country", "fr");
            rules.createRule("urgent", new CreateRuleOptions(urgent).setAction(new SqlRuleAction("SET sys.Label = 'seen'")));
            seen.put("rules", rules.listRules().stream().map(RuleProperties::getName).sorted().toList());
            List<ServiceBusMessage> messages = List.of(new ServiceBusMessage("small"), new ServiceBusMessage("large"), new ServiceBusMessage("urgent"));
            messages.get(0).getApplicationProperties().put("size", 5);
            messages.get(1).getApplicationProperties().put("size", 50);
            messages.get(2).setSubject("urgent").getApplicationProperties().put("country", "fr");
            sender.sendMessages(messages);
            List<String> received = new ArrayList<>();
            while (received.size() < 2) {
                for (ServiceBusReceivedMessage message : receiver.receiveMessages(2 - received.size(), PATIENCE)) {
                    received.add(message.getBody() + " " + message.getSubject());
                    receiver.complete(message);
                }
            }
            seen.put("received", received);
            rules.deleteRule("large");
        }
        RuleProperties left = administration.listRules("java-events", "eu").iterator().next();
        CorrelationRuleFilter filter = (CorrelationRuleFilter) left.getFilter();
        seen.put("left", List.of(left.getName(), filter.getLabel(), filter.getProperties(), ((SqlRuleAction) left.getAction()).getSqlExpression()));
        return seen;
    }
}

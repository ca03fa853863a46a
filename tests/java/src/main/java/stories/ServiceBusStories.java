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
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import reactor.core.publisher.Mono;

/** `ServiceBusStories <plain connection string> <connection string for TLS> <port>`: azure-messaging-servicebus as its users use it. */
public final class ServiceBusStories {
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
        for (ServiceBusReceivedMessage message : receiver.receiveMessages(count, Duration.ofSeconds(20))) {
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

    private static Object administration() {
        ServiceBusAdministrationClient client =
            new ServiceBusAdministrationClientBuilder().connectionString(tls).addPolicy(new OnPort(port)).buildClient();
        client.createQueue("made-by-java");
        boolean there = client.getQueueExists("made-by-java");
        String lock = client.getQueue("made-by-java").getLockDuration().toString();
        client.deleteQueue("made-by-java");
        return Map.of("there", there, "lock", lock, "after", client.getQueueExists("made-by-java"));
    }
}

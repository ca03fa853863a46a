import com.microsoft.azure.relay.HybridConnectionChannel;
import com.microsoft.azure.relay.HybridConnectionClient;
import com.microsoft.azure.relay.HybridConnectionListener;
import com.microsoft.azure.relay.RelayedHttpListenerContext;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.Scanner;

/** A listener of the Java client that gives back what it gets, over WebSocket and HTTP; or a sender that sends and compares. */
public class RelayEcho {
  public static void main(String[] arguments) throws Exception {
    String connectionString = System.getenv("RELAY_CONNECTION_STRING");
    if (arguments[0].equals("listen")) {
      listen(connectionString);
    } else {
      send(connectionString, Integer.parseInt(arguments[1]));
    }
    System.exit(0);
  }

  private static void listen(String connectionString) throws Exception {
    HybridConnectionListener listener = new HybridConnectionListener(connectionString);
    listener.setRequestHandler(RelayEcho::answer);
    listener.openAsync().join();
    System.out.println("listening");
    Thread accepting = new Thread(() -> accept(listener));
    accepting.setDaemon(true);
    accepting.start();
    new Scanner(System.in).hasNextLine(); // until the test hangs up
    listener.close();
  }

  private static void accept(HybridConnectionListener listener) {
    while (true) {
      HybridConnectionChannel channel = listener.acceptConnectionAsync().join();
      if (channel == null) {
        return;
      }
      Thread echoing = new Thread(() -> echo(channel));
      echoing.setDaemon(true);
      echoing.start();
    }
  }

  private static void echo(HybridConnectionChannel channel) {
    while (channel.isOpen()) {
      ByteBuffer received = channel.readAsync().join();
      if (received == null || received.remaining() == 0) {
        return;
      }
      channel.writeAsync(received).join();
    }
  }

  private static void answer(RelayedHttpListenerContext context) {
    try {
      InputStream asked = context.getRequest().getInputStream(); // null when there is no body
      byte[] body = asked == null ? new byte[0] : asked.readAllBytes();
      context.getResponse().setStatusCode(201);
      context.getResponse().getHeaders().put("Content-Type", "application/octet-stream");
      context.getResponse().getHeaders().put("X-Asked", context.getRequest().getUri().toString());
      for (int start = 0; start < body.length; start += 50_000) {
        context.getResponse().getOutputStream().write(body, start, Math.min(50_000, body.length - start));
      }
    } catch (Exception error) {
      error.printStackTrace();
    } finally {
      context.getResponse().close();
    }
  }

  private static void send(String connectionString, int size) throws Exception {
    byte[] sent = new byte[size];
    for (int index = 0; index < size; index++) {
      sent[index] = (byte) index;
    }
    HybridConnectionChannel channel = new HybridConnectionClient(connectionString).createConnectionAsync().join();
    channel.writeAsync(ByteBuffer.wrap(sent)).join();
    ByteBuffer back = ByteBuffer.allocate(size);
    while (back.hasRemaining()) {
      back.put(channel.readAsync().join());
    }
    channel.closeAsync().join();
    System.out.println(java.util.Arrays.equals(sent, back.array()) ? "same" : "different");
  }
}

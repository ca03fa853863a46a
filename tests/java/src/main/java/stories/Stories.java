package stories;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.LinkedHashMap;
import java.util.Map;

/** Runs stories one after the other and prints one line of JSON for each: what it saw, or what it fell over. */
final class Stories {
    interface Story {
        Object tell() throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper();
    private final Map<String, Story> stories = new LinkedHashMap<>();

    void add(String name, Story story) {
        stories.put(name, story);
    }

    void tellAll() throws Exception {
        for (Map.Entry<String, Story> entry : stories.entrySet()) {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("story", entry.getKey());
            try {
                line.put("seen", entry.getValue().tell());
            } catch (Throwable error) {
                line.put("error", describe(error));
            }
            System.out.println(JSON.writeValueAsString(line));
        }
        System.out.flush();
        System.exit(0);
    }

    /** The whole chain: clients wrap what the broker said. */
    static String describe(Throwable error) {
        StringBuilder text = new StringBuilder();
        for (Throwable one = error; one != null; one = one.getCause()) {
            text.append(text.isEmpty() ? "" : " < ").append(one.getClass().getSimpleName()).append(": ").append(one.getMessage());
        }
        return text.toString();
    }
}

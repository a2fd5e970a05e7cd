import static java.nio.file.StandardOpenOption.APPEND;
import static java.nio.file.StandardOpenOption.CREATE;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * A node of an election in ZooKeeper, as in Curator's documentation: LeaderSelector with LeaderSelectorListenerAdapter,
 * which interrupts the task when the connection is suspended or lost. The leader appends a line to a file every 10 ms.
 *
 * <p>Arguments: servers, path of the election, session timeout in ms, file, node, and true if the task reacts to
 * interrupts.
 */
final class Leader extends LeaderSelectorListenerAdapter {
    private final Path file;
    private final String node;
    private final boolean heeds;

    private Leader(Path file, String node, boolean heeds) {
        this.file = file;
        this.node = node;
        this.heeds = heeds;
    }

    public static void main(String[] args) throws InterruptedException {
        var session = Integer.parseInt(args[2]);
        var client = CuratorFrameworkFactory.builder()
                .connectString(args[0])
                .sessionTimeoutMs(session)
                .retryPolicy(new ExponentialBackoffRetry(1000, 3))
                .build();
        var leader = new Leader(Path.of(args[3]), args[4], Boolean.parseBoolean(args[5]));
        var selector = new LeaderSelector(client, args[1], leader);
        selector.autoRequeue();
        client.start();
        selector.start();
        // On SIGTERM, gives up leadership before it closes the session.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            selector.close();
            client.close();
        }));
        Thread.currentThread().join();
    }

    /** The node leads until this method returns. */
    @Override
    public void takeLeadership(CuratorFramework client) throws IOException, InterruptedException {
        while (true) {
            var seconds = System.currentTimeMillis() / 1e3;
            Files.writeString(file, String.format(Locale.ROOT, "%s - %.6f%n", node, seconds), CREATE, APPEND);
            try {
                Thread.sleep(10);
            } catch (InterruptedException stop) {
                if (heeds) {
                    throw stop;
                }
            }
        }
    }
}

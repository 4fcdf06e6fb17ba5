// Curator's recipes against the servers of the connect string args[0]. Where there is an args[1], one of the servers is killed after a line that says kill. Any check that does not hold ends it with an error.

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.utils.CloseableUtils;
import org.apache.zookeeper.CreateMode;

public final class CuratorRecipes {
    private static String servers;
    private static final List<String> held = new ArrayList<>();

    private static synchronized void check(String name, boolean holds) {
        if (!holds) {
            throw new AssertionError(name);
        }
        held.add(name);
    }

    private static CuratorFramework client() throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(servers, 10_000, 10_000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected(20, TimeUnit.SECONDS);
        return client;
    }

    /** The client, once its server knows what was done elsewhere before. */
    private static CuratorFramework up(CuratorFramework client) throws Exception {
        CountDownLatch synced = new CountDownLatch(1);
        client.getZookeeperClient().getZooKeeper().sync("/", (code, path, context) -> synced.countDown(), null);
        if (!synced.await(20, TimeUnit.SECONDS)) {
            throw new AssertionError("a server does not catch up");
        }
        return client;
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void until(String name, Condition condition) throws Exception {
        for (int attempt = 0; attempt < 200 && !condition.holds(); attempt++) {
            Thread.sleep(50);
        }
        check(name, condition.holds());
    }

    private static void locks(CuratorFramework ann, CuratorFramework bob, ExecutorService threads) throws Exception {
        InterProcessMutex hers = new InterProcessMutex(ann, "/locks/mutex");
        InterProcessMutex his = new InterProcessMutex(bob, "/locks/mutex");
        check("a lock is taken", hers.acquire(10, TimeUnit.SECONDS));
        check("a lock is held by one alone", !his.acquire(300, TimeUnit.MILLISECONDS));
        Future<Boolean> waiting = threads.submit(() -> his.acquire(20, TimeUnit.SECONDS));
        hers.release();
        check("a lock goes to who waits", waiting.get(30, TimeUnit.SECONDS));

        InterProcessReadWriteLock shared = new InterProcessReadWriteLock(ann, "/locks/shared");
        InterProcessReadWriteLock other = new InterProcessReadWriteLock(bob, "/locks/shared");
        check("a read lock is taken", shared.readLock().acquire(10, TimeUnit.SECONDS));
        check("two read", other.readLock().acquire(10, TimeUnit.SECONDS));
        other.readLock().release();
        check("nobody writes while one reads", !other.writeLock().acquire(300, TimeUnit.MILLISECONDS));
        shared.readLock().release();
        check("then one writes", other.writeLock().acquire(10, TimeUnit.SECONDS));

        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(ann, "/locks/semaphore", 2);
        Lease first = semaphore.acquire();
        Lease second = semaphore.acquire();
        check("a semaphore has its leases and no more", semaphore.acquire(300, TimeUnit.MILLISECONDS) == null);
        semaphore.returnLease(first);
        Lease third = semaphore.acquire(10, TimeUnit.SECONDS);
        check("a lease that is given back is given out", third != null);
        semaphore.returnLease(second);
        semaphore.returnLease(third);
        InterProcessMultiLock several = new InterProcessMultiLock(ann, List.of("/locks/one", "/locks/two"));
        check("several locks at once", several.acquire(10, TimeUnit.SECONDS));
        several.release();
    }

    private static void leaders(CuratorFramework ann, CuratorFramework bob) throws Exception {
        LeaderLatch hers = new LeaderLatch(ann, "/latch", "ann");
        LeaderLatch his = new LeaderLatch(bob, "/latch", "bob");
        hers.start();
        check("one leads", hers.await(20, TimeUnit.SECONDS));
        his.start();
        until("both take part", () -> hers.getParticipants().size() == 2);
        up(bob);
        check("the leader is known", his.getLeader().getId().equals("ann"));
        hers.close();
        check("the other leads then", his.await(20, TimeUnit.SECONDS));
        his.close();
        CountDownLatch led = new CountDownLatch(1);
        LeaderSelector selector = new LeaderSelector(ann, "/selector", new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework client) {
                led.countDown();
            }
        });
        selector.start();
        check("a selector selects", led.await(20, TimeUnit.SECONDS));
        selector.close();
    }

    private static void barriersAndCounters(CuratorFramework ann, CuratorFramework bob, ExecutorService threads) throws Exception {
        DistributedBarrier barrier = new DistributedBarrier(ann, "/barrier");
        barrier.setBarrier();
        Future<Boolean> waiting = threads.submit(() -> new DistributedBarrier(up(bob), "/barrier").waitOnBarrier(20, TimeUnit.SECONDS));
        Thread.sleep(200);
        barrier.removeBarrier();
        check("a barrier holds until it is removed", waiting.get(30, TimeUnit.SECONDS));
        Future<Boolean> entering = threads.submit(() -> new DistributedDoubleBarrier(bob, "/double", 2).enter(20, TimeUnit.SECONDS));
        check("a double barrier is entered together",
            new DistributedDoubleBarrier(ann, "/double", 2).enter(20, TimeUnit.SECONDS) && entering.get(30, TimeUnit.SECONDS));
        SharedCount count = new SharedCount(ann, "/count", 5);
        SharedCount same = new SharedCount(bob, "/count", 0);
        count.start();
        up(bob);
        same.start();
        count.setCount(8);
        until("a shared count is shared", () -> same.getCount() == 8);
        DistributedAtomicLong number = new DistributedAtomicLong(ann, "/number", new RetryOneTime(10));
        List<Future<?>> adding = new ArrayList<>();
        AtomicInteger added = new AtomicInteger();
        for (CuratorFramework who : List.of(ann, bob)) {
            adding.add(threads.submit(() -> {
                DistributedAtomicLong mine = new DistributedAtomicLong(who, "/number", new RetryOneTime(10));
                for (int round = 0; round < 50; round++) {
                    if (mine.increment().succeeded()) {
                        added.incrementAndGet();
                    }
                }
                return null;
            }));
        }
        for (Future<?> one : adding) {
            one.get(60, TimeUnit.SECONDS);
        }
        check("a counter counts what succeeded", number.get().postValue() == added.get() && added.get() > 0);
        count.close();
        same.close();
    }

    private static void nodes(CuratorFramework ann, CuratorFramework bob) throws Exception {
        AtomicInteger seen = new AtomicInteger();
        CuratorCache cache = CuratorCache.build(bob, "/cache");
        cache.listenable().addListener((type, before, after) -> seen.incrementAndGet());
        cache.start();
        ann.create().creatingParentContainersIfNeeded().forPath("/cache/a/b", "one".getBytes());
        ann.setData().forPath("/cache/a/b", "two".getBytes());
        until("a cache follows", () -> cache.get("/cache/a/b").map(node -> new String(node.getData()).equals("two")).orElse(false));
        check("its listener was told", seen.get() >= 3);
        cache.close();
        PersistentWatcher watcher = new PersistentWatcher(bob, "/watched", true);
        AtomicInteger events = new AtomicInteger();
        watcher.getListenable().addListener(event -> events.incrementAndGet());
        watcher.start();
        Thread.sleep(300);
        ann.create().creatingParentsIfNeeded().forPath("/watched/x/y");
        ann.delete().forPath("/watched/x/y");
        until("a recursive watch hears of all below", () -> events.get() >= 3);
        watcher.close();
        PersistentNode node = new PersistentNode(ann, CreateMode.EPHEMERAL, false, "/mine", "here".getBytes());
        node.start();
        check("a persistent node is made", node.waitForInitialCreate(20, TimeUnit.SECONDS));
        up(bob).delete().forPath("/mine");
        until("and made again", () -> bob.checkExists().forPath("/mine") != null);
        node.close();
        GroupMember hers = new GroupMember(ann, "/group", "ann", "1".getBytes());
        GroupMember his = new GroupMember(bob, "/group", "bob", "2".getBytes());
        hers.start();
        his.start();
        until("a group knows its members", () -> hers.getCurrentMembers().size() == 2 && his.getCurrentMembers().size() == 2);
        his.close();
        until("and who has left", () -> hers.getCurrentMembers().size() == 1);
        hers.close();
        ann.transaction().forOperations(
            ann.transactionOp().create().forPath("/together"),
            ann.transactionOp().setData().forPath("/together", "all".getBytes()),
            ann.transactionOp().check().withVersion(1).forPath("/together"));
        check("a transaction is done as a whole", new String(up(bob).getData().forPath("/together")).equals("all"));
        ann.create().withTtl(60_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath("/short");
        ann.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath("/protected-");
        check("nodes of all kinds are made", up(bob).getChildren().forPath("/").stream().anyMatch(name -> name.contains("protected-")));
    }

    private static void outlives() throws Exception {
        CuratorFramework ann = CuratorFrameworkFactory.newClient(servers, 10_000, 10_000, new ExponentialBackoffRetry(100, 10));
        CuratorFramework bob = CuratorFrameworkFactory.newClient(servers, 10_000, 10_000, new ExponentialBackoffRetry(100, 10));
        ann.start();
        bob.start();
        LeaderLatch latch = new LeaderLatch(ann, "/outlives/latch", "ann");
        latch.start();
        check("one leads before a server is killed", latch.await(20, TimeUnit.SECONDS));
        PersistentNode node = new PersistentNode(ann, CreateMode.EPHEMERAL, false, "/outlives/mine", "here".getBytes());
        node.start();
        check("a node is made before a server is killed", node.waitForInitialCreate(20, TimeUnit.SECONDS));
        CuratorCache cache = CuratorCache.build(bob, "/outlives");
        cache.start();
        long session = ann.getZookeeperClient().getZooKeeper().getSessionId();
        System.out.println("kill");
        System.in.read();
        ann.create().orSetData().creatingParentsIfNeeded().forPath("/outlives/data", "after".getBytes());
        until("a cache outlives a server", () -> cache.get("/outlives/data").map(found -> new String(found.getData()).equals("after")).orElse(false));
        check("a session outlives a server", ann.getZookeeperClient().getZooKeeper().getSessionId() == session);
        check("an ephemeral node outlives a server", bob.checkExists().forPath("/outlives/mine") != null);
        until("somebody leads again", latch::hasLeadership);
        InterProcessMutex lock = new InterProcessMutex(bob, "/outlives/lock");
        check("a lock is taken after a server was killed", lock.acquire(20, TimeUnit.SECONDS));
        lock.release();
        latch.close();
        node.close();
        cache.close();
        CloseableUtils.closeQuietly(bob);
        CloseableUtils.closeQuietly(ann);
    }

    public static void main(String[] args) throws Exception {
        servers = args[0];
        ExecutorService threads = Executors.newCachedThreadPool();
        CuratorFramework ann = client();
        CuratorFramework bob = client();
        locks(ann, bob, threads);
        leaders(ann, bob);
        barriersAndCounters(ann, bob, threads);
        nodes(ann, bob);
        if (args.length > 1) {
            outlives();
        }
        CloseableUtils.closeQuietly(bob);
        CloseableUtils.closeQuietly(ann);
        threads.shutdownNow();
        System.out.println(held.size() + " checks: " + String.join("; ", held));
        System.exit(0);
    }
}

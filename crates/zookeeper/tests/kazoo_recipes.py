"""kazoo's calls and recipes against the servers of the connect string argv[1]. Where there is an argv[2], one of the servers is killed after a line
that says `kill`. Any check that does not hold ends it with an error."""

import datetime
import socket
import sys
import threading
import time

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NotEmptyError,
    ReconfigDisabledError,
    RuntimeInconsistency,
)
from kazoo.recipe.cache import TreeCache
from kazoo.recipe.watchers import PatientChildrenWatch
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

held = []


def check(name, holds, found=""):
    assert holds, (name, found)
    held.append(name)


def fails(name, error, call, *arguments, **named):
    try:
        found = call(*arguments, **named)
    except error:
        held.append(name)
    else:
        raise AssertionError((name, found))


def client(**named):
    made = KazooClient(hosts=sys.argv[1], timeout=5, **named)
    made.start()
    return made


def up(one):
    """The client, once its server knows what was done elsewhere before."""
    one.sync("/")
    return one


def at_once(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def until(name, condition):
    """Waits for what others bring about."""
    for _ in range(100):
        if condition():
            break
        time.sleep(0.1)
    check(name, condition())


ann, bob = client(), client()

# Nodes.
check("create", ann.create("/t", b"x") == "/t")
path, stat = ann.create("/t/s", b"y", include_data=True)
check("create with stat", (path, stat.version) == ("/t/s", 0))
check("get", up(bob).get("/t")[0] == b"x")
check("set", ann.set("/t", b"z", version=0).version == 1)
fails("set at another version", BadVersionError, ann.set, "/t", b"z", version=0)
children, stat = ann.get_children("/t", include_data=True)
check("children with stat", (children, stat.numChildren) == (["s"], 1))
check("sequence", ann.create("/t/q-", sequence=True) == "/t/q-0000000001")
fails("delete with children", NotEmptyError, ann.delete, "/t")
check("sync", ann.sync("/t") == "/t")
many = ann.transaction()
many.create("/t/m", b"1")
many.set_data("/t/m", b"2")
many.check("/t/m", 1)
many.delete("/t/s")
done = many.commit()
check("transaction", done[0] == "/t/m" and done[1].version == 1 and done[2:] == [True, True], done)
many = ann.transaction()
many.create("/t/m")
many.delete("/t/q-0000000001")
done = many.commit()
check("transaction that fails", isinstance(done[0], NodeExistsError) and isinstance(done[1], RuntimeInconsistency), done)
check("and changes nothing", ann.exists("/t/q-0000000001") is not None)

# ACLs.
eve = client(auth_data=[("digest", "eve:pw")])
acl = make_digest_acl("eve", "pw", all=True)
eve.create("/secret", b"s", acl=[acl])
fails("read without right", NoAuthError, up(ann).get, "/secret")
check("read with right", eve.get("/secret")[0] == b"s")
check("get ACL", eve.get_acls("/secret")[0][0].id.id == acl.id.id)
eve.set_acls("/secret", OPEN_ACL_UNSAFE)
check("set ACL", up(ann).get("/secret")[0] == b"s")

# Watchers.
seen, listed = [], []
bob.DataWatch("/w", lambda data, stat: seen.append(data))
ann.create("/w", b"1")
ann.set("/w", b"2")
until("DataWatch", lambda: seen and seen[-1] == b"2")
check("DataWatch before there is a node", seen[0] is None)
up(bob).ChildrenWatch("/w", lambda children: listed.append(sorted(children)))
ann.create("/w/a")
ann.create("/w/b")
until("ChildrenWatch", lambda: listed[-1] == ["a", "b"])
found = PatientChildrenWatch(up(bob), "/w", 0.3).start().get(timeout=10)
check("PatientChildrenWatch", sorted(found[0]) == ["a", "b"], found)

# Locks.
order = []
mine, theirs = ann.Lock("/lock", "ann"), bob.Lock("/lock", "bob")
mine.acquire()
check("Lock that is held", theirs.acquire(blocking=False) is False)


def take():
    with theirs:
        order.append("bob")


taking = threading.Thread(target=take)
taking.start()
time.sleep(0.3)
order.append("ann")
mine.release()
taking.join(30)
check("Lock", order == ["ann", "bob"], order)
reading, writing = ann.ReadLock("/rw"), bob.WriteLock("/rw")
reading.acquire()
check("WriteLock waits", writing.acquire(blocking=False) is False)
reading.release()
check("WriteLock", writing.acquire(timeout=10))
first, second = ann.Semaphore("/semaphore", max_leases=1), bob.Semaphore("/semaphore", max_leases=1)
first.acquire()
check("Semaphore waits", second.acquire(blocking=False) is False)
first.release()
check("Semaphore", second.acquire(timeout=10))
hour = datetime.timedelta(hours=1)
check("Lease", bool(ann.NonBlockingLease("/lease", hour, identifier="ann")))
check("Lease that is held", not bob.NonBlockingLease("/lease", hour, identifier="bob"))

# Election.
led, leading = [], []


def lead(name):
    leading.append(name)
    time.sleep(0.2)
    led.append((name, list(leading)))
    leading.remove(name)


elections = [(one.Election("/election", name), name) for one, name in ((ann, "ann"), (bob, "bob"))]
at_once(*(lambda election=election, name=name: election.run(lead, name) for election, name in elections))
check("Election", sorted(led) == [("ann", ["ann"]), ("bob", ["bob"])], led)

# Queues.
queue, other = ann.Queue("/queue"), bob.Queue("/queue")
queue.put(b"1")
queue.put(b"0", priority=1)
queue.put(b"2")
up(bob)
check("Queue", [other.get() for _ in range(4)] == [b"0", b"1", b"2", None])
ann.LockingQueue("/locking").put(b"1")
locking = bob.LockingQueue("/locking")
check("LockingQueue", locking.get(10) == b"1" and locking.consume())

# Barriers.
barrier, passed = ann.Barrier("/barrier"), []
barrier.create()
up(bob)
waiting = threading.Thread(target=lambda: passed.append(bob.Barrier("/barrier").wait(10)))
waiting.start()
time.sleep(0.2)
check("Barrier waits", passed == [])
barrier.remove()
waiting.join(30)
check("Barrier", passed == [True], passed)
doubles = [one.DoubleBarrier("/double", 2) for one in (ann, bob)]
at_once(*(double.enter for double in doubles))
check("DoubleBarrier", all(double.participating for double in doubles))
at_once(*(double.leave for double in doubles))

# Counter, party, partitioner, cache.
counters = [one.Counter("/counter") for one in (ann, bob)]
at_once(*(lambda counter=counter: [counter.__add__(1) for _ in range(50)] for counter in counters))
up(ann), up(bob)
check("Counter", [counter.value for counter in counters] == [100, 100])
parties = [ann.Party("/party", "ann"), bob.Party("/party", "bob")]
for party in parties:
    party.join()
up(ann)
check("Party", sorted(parties[0]) == ["ann", "bob"])
parties[0].leave()
up(bob)
check("Party that one leaves", list(parties[1]) == ["bob"])
partitioner = ann.SetPartitioner("/partitions", set(range(4)), time_boundary=0.3)
until("SetPartitioner", lambda: partitioner.acquired or partitioner.wait_for_acquire(1))
check("SetPartitioner's set", len(list(partitioner)) == 4)
partitioner.finish()
cache = TreeCache(up(bob), "/w")
cache.start()
ann.create("/w/c", b"new")
until("TreeCache", lambda: cache.get_data("/w/c") is not None and cache.get_data("/w/c").data == b"new")
cache.close()

# Sessions.
fay, states = client(), []
fay.create("/mine", ephemeral=True)
session = fay.client_id
check("ephemeral owner", up(ann).exists("/mine").ephemeralOwner == session[0])
fay.add_listener(states.append)
fay.DataWatch("/w", lambda data, stat: states.append(data))
fay._connection._socket.shutdown(socket.SHUT_RDWR)
until("reconnect", lambda: KazooState.SUSPENDED in states and fay.connected and fay.client_id == session)
check("ephemeral node after a reconnect", up(ann).exists("/mine") is not None)
ann.set("/w", b"after")
until("watch after a reconnect", lambda: b"after" in states)
fay.stop()
check("ephemeral node after its session", up(ann).exists("/mine") is None)

# Operators.
check("ruok", ann.command(b"ruok") == "imok")
roles = ["leader", "follower"] if "," in sys.argv[1] else ["standalone"]
check("mntr", any(f"zk_server_state\t{role}" in ann.command(b"mntr") for role in roles))
check("server_version", ann.server_version()[0] == 3)
fails("reconfig", ReconfigDisabledError, ann.reconfig, "", "", "")
check("config", ann.get("/zookeeper/config")[0] == b"")

# A server that is killed.
if len(sys.argv) > 2:
    seen = []
    lock = ann.Lock("/outlives/lock", "ann")
    lock.acquire()
    ann.create("/outlives/mine", ephemeral=True)
    ann.create("/outlives/data", b"before")
    up(bob).DataWatch("/outlives/data", lambda data, stat: seen.append(data))
    sessions = [one.client_id for one in (ann, bob)]
    print("kill", flush=True)
    sys.stdin.readline()
    until("clients find another server", lambda: ann.connected and bob.connected)
    ann.retry(ann.set, "/outlives/data", b"after")
    until("a watch outlives a server", lambda: seen and seen[-1] == b"after")
    check("sessions outlive a server", sessions == [one.client_id for one in (ann, bob)])
    check("an ephemeral node outlives a server", bob.retry(bob.exists, "/outlives/mine") is not None)
    theirs = bob.Lock("/outlives/lock", "bob")
    check("a lock outlives a server", bob.retry(theirs.acquire, blocking=False) is False)
    ann.retry(lock.release)
    check("and goes to who waits", theirs.acquire(timeout=20))
    theirs.release()

for one in (ann, bob, eve):
    one.stop()
print(len(held), "checks:", ", ".join(held))

//! A client that is connected to the replicas and asks for nothing, and its connections as the system sees them: no replica tells whose they are.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};

use bezant::failure::{Attempt as _, Failure};

use super::cluster::Cluster;

/// The system's table of connections, and the states in it of those that their own end has not closed: established, and closed by the other end only.
const TABLE: &str = "/proc/net/tcp";
const NOT_CLOSED: [&str; 2] = ["01", "08"];

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
    /// The address and port of this end, and of the other, as the table writes them.
    own: String,
    other: String,
    /// What the system calls it.
    inode: u64,
}

/// The ends in a table that are not closed.
fn ends(table: &str) -> Vec<End> {
    let end = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, own, other, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
        NOT_CLOSED.contains(&state).then_some(End { own: own.to_owned(), other: other.to_owned(), inode: inode.parse().ok()? })
    };
    table.lines().skip(1).filter_map(end).collect()
}

fn ends_now() -> Result<Vec<End>, Failure> {
    Ok(ends(&fs::read_to_string(TABLE).attempt("read the system's connections", TABLE)?))
}

/// The process of such a client.
pub struct Visitor {
    child: Child,
    /// Its ends of the connections that count.
    ends: Vec<End>,
}

impl Visitor {
    /// Starts the client whose folder this is.
    pub fn start(cluster: &Cluster, folder: &Path) -> Result<Self, Failure> {
        let place = folder.display().to_string();
        let mut command = cluster.command(&["shell", "--cluster", &place]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().attempt("start a shell of", &place)?;
        // Its input stays open, so that it stays connected.
        let asked = child.stdin.as_mut().map(|input| input.write_all(b"get soak/guest\n"));
        asked.transpose().attempt("ask the shell of", &place)?;
        Ok(Self { child, ends: Vec::new() })
    }

    /// Counts its connections; later on these are looked for. One that has ended has none.
    pub fn count(&mut self) -> Result<usize, Failure> {
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id())).into_iter().flatten().flatten();
        let sockets = files.filter_map(|file| {
            let link = fs::read_link(file.path()).ok()?;
            link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        });
        let sockets: BTreeSet<u64> = sockets.collect();
        self.ends = ends_now()?;
        self.ends.retain(|end| sockets.contains(&end.inode));
        Ok(self.ends.len())
    }

    /// How many of the connections that were counted some replica has not closed yet.
    pub fn open(&self) -> Result<usize, Failure> {
        let now = ends_now()?;
        Ok(self.ends.iter().filter(|end| now.iter().any(|other| other.own == end.other && other.other == end.own)).count())
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_table_of_the_system_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1CE8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1 0 100 0 0 10 0\n   \
            1: 0100007F:1CE8 0100007F:A002 01 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 20 4 30 10 -1\n   \
            2: 0100007F:A002 0100007F:1CE8 08 00000000:00000000 00:00000000 00000000  1000        0 13 1 0 20 4 30 10 -1\n   \
            3: 0100007F:A003 0100007F:1CE8 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n";
        let end = |own: &str, other: &str, inode| End { own: own.to_owned(), other: other.to_owned(), inode };
        let (replica, client) = ("0100007F:1CE8", "0100007F:A002");
        assert_eq!(ends(table), [end(replica, client, 12), end(client, replica, 13)]);
    }

    #[test]
    fn a_connection_that_the_other_end_closed_is_not_open() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
        let (server, _) = listener.accept().expect("somebody came");
        let of_client = |end: &End| end.own.ends_with(&format!(":{:04X}", client.local_addr().expect("it has one").port()));
        let mine = |ends: Vec<End>| ends.into_iter().find(of_client);
        let end = mine(ends_now().expect("Linux has it")).expect("it is open");
        let is_open = || ends_now().expect("Linux has it").iter().any(|other| other.own == end.other && other.other == end.own);
        assert!(is_open());
        drop(server);
        assert!(!is_open());
    }
}

//! Retwis on a Redis server, which Buzzer is measured beside (Augustus §4.4): the same users and the same choices, by Retwis' design.
//!
//! ```text
//! next_post_id          a counter that every post goes through
//! post:<id>             a post
//! following:<user>, followers:<user>
//! posts:<user>          the timeline: the posts of those followed, put there when they were written
//! ```
//!
//! The server is started for it, in memory alone, and nothing is replicated. Each client has a connection of its own. Commands that need
//! nothing of one another's answers go out together. The cluster under `--cluster` stands by idle, and is asked nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, CommitPath};
use rand::Rng as _;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use workload::{BuzzerMix, Done, Error, LoopClient, Progress, Readiness, Work, Workload, followed, post_text};

use crate::BenchError;

/// How long the server may take to start.
const START_MAX: Duration = Duration::from_secs(30);
/// How many posts a timeline shows, and how many it keeps: Retwis keeps a thousand.
const SHOWN: &str = "9";
const KEPT: &str = "999";
/// How many posts each user of the network has written before, as on a cluster.
const POSTS_BEFORE: u64 = 5;
/// How many commands go out together while the network is filled.
const FILLED_AT_ONCE: usize = 1_000;
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The workload.
pub(crate) struct RetwisOnRedis {
    mix: BuzzerMix,
    users: u64,
    seed: u64,
    server: Server,
    /// By client.
    connections: Vec<Mutex<Option<Connection>>>,
}

impl RetwisOnRedis {
    pub(crate) fn new(mix: BuzzerMix, users: u64, seed: u64, clients: u32) -> Result<Self, BenchError> {
        let server = Server::start().map_err(|error| BenchError::Settings(format!("no Redis server can be started: {error}")))?;
        Ok(Self { mix, users, seed, server, connections: (0..clients).map(|_| Mutex::new(None)).collect() })
    }

    /// Makes the network, where there is to be one.
    async fn fill(&self) -> io::Result<()> {
        if !self.mix.is_of_network() {
            return Ok(());
        }
        let mut connection = self.server.connect().await?;
        let mut followers: Vec<Vec<u64>> = vec![Vec::new(); self.users as usize];
        let mut commands = Vec::new();
        for user in 0..self.users {
            for other in followed(self.users, self.seed, user) {
                followers[other as usize].push(user);
                commands.extend(follow(user, other));
            }
        }
        let mut rng = LoopClient::new(self.seed, 0).rng;
        for number in 0..POSTS_BEFORE * self.users {
            let (id, author) = (number.to_string(), number % self.users);
            commands.push(vec![
                "HSET".into(),
                format!("post:{id}"),
                "user".into(),
                author.to_string(),
                "body".into(),
                post_text(&mut rng).as_str().to_owned(),
            ]);
            for reader in followers[author as usize].iter().chain([&author]) {
                commands.push(vec!["LPUSH".into(), format!("posts:{reader}"), id.clone()]);
            }
            if commands.len() >= FILLED_AT_ONCE {
                connection.ask(&commands).await?;
                commands.clear();
            }
        }
        commands.push(vec!["SET".into(), "next_post_id".into(), (POSTS_BEFORE * self.users).to_string()]);
        connection.ask(&commands).await.map(drop)
    }

    async fn run(&self, loop_client: &mut LoopClient) -> io::Result<()> {
        loop_client.kind = self.mix.draw(&mut loop_client.rng);
        let mut slot = self.connections[loop_client.index as usize].lock().await;
        let connection = match &mut *slot {
            Some(connection) => connection,
            slot => slot.insert(self.server.connect().await?),
        };
        let one = loop_client.rng.random_range(0..self.users);
        match loop_client.kind {
            0 => write(connection, one, post_text(&mut loop_client.rng).as_str()).await,
            1 => {
                let other = (one + loop_client.rng.random_range(1..self.users)) % self.users;
                connection.ask(&follow(one, other)).await.map(drop)
            }
            _ => timeline(connection, one).await,
        }
    }
}

/// A post: its number from the counter, itself, and into all timelines.
async fn write(connection: &mut Connection, author: u64, text: &str) -> io::Result<()> {
    let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    let (author, own) = (author.to_string(), author);
    let id = connection.ask(&[command(&["INCR", "next_post_id"])]).await?.pop().unwrap_or_default().text();
    let asked = [
        command(&["HSET", &format!("post:{id}"), "user", &author, "body", text]),
        command(&["ZRANGE", &format!("followers:{author}"), "0", "-1"]),
    ];
    let followers = connection.ask(&asked).await?.pop().unwrap_or_default().list();
    let readers = followers.into_iter().map(Reply::text).chain([own.to_string()]);
    let pushes = readers.flat_map(|reader| {
        let posts = format!("posts:{reader}");
        [command(&["LPUSH", &posts, &id]), command(&["LTRIM", &posts, "0", KEPT])]
    });
    connection.ask(&pushes.collect::<Vec<_>>()).await.map(drop)
}

fn follow(one: u64, other: u64) -> [Vec<String>; 2] {
    let add = |set: String, member: u64| vec!["ZADD".to_owned(), set, "1".to_owned(), member.to_string()];
    [add(format!("followers:{other}"), one), add(format!("following:{one}"), other)]
}

/// A timeline: its list of posts, and then each of them.
async fn timeline(connection: &mut Connection, reader: u64) -> io::Result<()> {
    let list = ["LRANGE".to_owned(), format!("posts:{reader}"), "0".to_owned(), SHOWN.to_owned()].to_vec();
    let ids = connection.ask(&[list]).await?.pop().unwrap_or_default().list();
    let posts: Vec<Vec<String>> = ids.into_iter().map(|id| vec!["HGETALL".to_owned(), format!("post:{}", id.text())]).collect();
    for post in connection.ask(&posts).await? {
        if post.list().len() != 4 {
            return Err(io::Error::other("a post in a timeline is not there"));
        }
    }
    Ok(())
}

impl Workload for RetwisOnRedis {
    fn name(&self) -> &'static str {
        self.mix.name()
    }

    fn settings(&self) -> BTreeMap<&'static str, Json> {
        BTreeMap::from([("keys", json!(self.users)), ("on", json!("redis")), ("seed", json!(self.seed))])
    }

    fn kinds(&self) -> &'static [&'static str] {
        &BuzzerMix::KINDS
    }

    fn load<'a>(&'a self, _client: &'a Arc<Client>, _progress: Progress<'a>) -> Work<'a, u64> {
        Box::pin(async { Err(Error::Settings("a Redis server is filled at each run: leave --load out".to_owned())) })
    }

    fn start<'a>(&'a self, _client: &'a Client, _loop_clients: u32) -> Work<'a, Readiness> {
        Box::pin(async move {
            self.fill().await.map_err(said)?;
            Ok(Readiness::Filled)
        })
    }

    fn transact<'a>(&'a self, _client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        Box::pin(async move {
            self.run(loop_client).await.map_err(said)?;
            // It has taken place, and nothing had to be agreed on.
            Ok(Done { path: Some(CommitPath::Empty), attempts: 1, broken: None })
        })
    }
}

fn said(error: io::Error) -> Error {
    Error::Settings(format!("the Redis server: {error}"))
}

/// A Redis server in a folder of its own, which ends with its owner.
struct Server {
    process: Child,
    folder: TempDir,
}

impl Server {
    fn start() -> io::Result<Self> {
        let folder = TempDir::with_prefix("bezant-redis-")?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", "socket", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        let process = command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut server = Self { process, folder };
        let begun = Instant::now();
        while !server.socket().exists() {
            if server.process.try_wait()?.is_some() || begun.elapsed() > START_MAX {
                return Err(io::Error::other("redis-server does not serve"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn socket(&self) -> std::path::PathBuf {
        Path::new(self.folder.path()).join("socket")
    }

    async fn connect(&self) -> io::Result<Connection> {
        Ok(Connection { stream: BufReader::new(UnixStream::connect(self.socket()).await?) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It keeps nothing, so it may end at once.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection that speaks Redis' protocol.
struct Connection {
    stream: BufReader<UnixStream>,
}

/// What a command came to.
#[derive(Debug, Default)]
enum Reply {
    #[default]
    Nothing,
    Text(String),
    List(Vec<Reply>),
}

impl Reply {
    fn text(self) -> String {
        if let Self::Text(text) = self { text } else { String::new() }
    }

    fn list(self) -> Vec<Self> {
        if let Self::List(list) = self { list } else { Vec::new() }
    }
}

impl Connection {
    /// Sends commands together, and gives what each came to.
    async fn ask(&mut self, commands: &[Vec<String>]) -> io::Result<Vec<Reply>> {
        let mut out = Vec::new();
        for command in commands {
            out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for word in command {
                out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
        }
        self.stream.get_mut().write_all(&out).await?;
        let mut replies = Vec::with_capacity(commands.len());
        for _ in commands {
            replies.push(match self.reply().await? {
                Head::Whole(reply) => reply,
                // No command of ours gives lists of lists.
                Head::List(count) => {
                    let mut list = Vec::with_capacity(count);
                    for _ in 0..count {
                        let Head::Whole(reply) = self.reply().await? else { return Err(io::Error::other("a list in a list")) };
                        list.push(reply);
                    }
                    Reply::List(list)
                }
            });
        }
        Ok(replies)
    }

    /// One reply, or how many a list has.
    async fn reply(&mut self) -> io::Result<Head> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        let wrong = |line: &str| io::Error::other(format!("it said {line:?}"));
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| wrong(line))?;
        let count = || rest.parse::<usize>().ok().filter(|count| *count <= ANSWER_BYTES_MAX).ok_or_else(|| wrong(line));
        Ok(match kind {
            "+" | ":" => Head::Whole(Reply::Text(rest.to_owned())),
            "$" | "*" if rest == "-1" => Head::Whole(Reply::Nothing),
            "*" => Head::List(count()?),
            "$" => {
                let mut text = vec![0; count()? + 2];
                self.stream.read_exact(&mut text).await?;
                text.truncate(text.len() - 2);
                Head::Whole(Reply::Text(String::from_utf8(text).map_err(|_| wrong(line))?))
            }
            _ => return Err(wrong(line)),
        })
    }
}

/// How a reply begins.
enum Head {
    Whole(Reply),
    List(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn retwis_runs_on_a_real_server_where_there_is_one() {
        let retwis = match RetwisOnRedis::new(BuzzerMix::Mix, 40, 1, 1) {
            Ok(retwis) => retwis,
            Err(error) => return eprintln!("left out: {error}"),
        };
        retwis.fill().await.expect("it is filled");
        let mut loop_client = LoopClient::new(1, 0);
        for _ in 0..200 {
            retwis.run(&mut loop_client).await.expect("it runs");
        }
        let mut connection = retwis.server.connect().await.expect("it serves");
        write(&mut connection, 3, "news").await.expect("posted");
        let last = connection.ask(&[vec!["LINDEX".into(), "posts:3".into(), "0".into()], vec!["GET".into(), "next_post_id".into()]]).await;
        let last: Vec<String> = last.expect("both are there").into_iter().map(Reply::text).collect();
        assert!(last[0] == last[1] && last[0].parse::<u64>().expect("a number") > POSTS_BEFORE * 40, "{last:?}");
        connection.ask(&[vec!["NONSENSE".into()]]).await.expect_err("an error is one");
    }
}

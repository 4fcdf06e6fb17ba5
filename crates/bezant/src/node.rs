//! `bezant node`: one replica, put together from its parts: files, disk, protocol, network, and the HTTP window.

mod executes_with;
mod has_run;
mod latest;
mod wiring;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use crypto::{BatchSigner, Signable, Signatures, Verified, Verifier};
use machine::Machine;
use monitoring::server::{self, Site};
use runtime::{
    ChangeOptions, Identity, Limits, LogLimit, LowPriority, Metrics, Newest, Node, NodeError, NodeHandle, NodeOptions, RunOn, Wire,
};
use store::StoreError;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use types::{Cluster, Party, ReplicaId};

use crate::Cores;
use crate::confine;
use crate::evidence::{Keeper, Record, divergences, folder_of, now_ms};
use crate::failure::{Attempt as _, Done, Failure};
use crate::key;
use crate::logs;
use crate::mutant;
use crate::regions::NodeRegions;
use config::NodeConfig;
use engine::{Instruction, Misbehavior, Replica};
pub use executes_with::carry_over;
use has_run::HasRun;
pub use latest::FLIP_PATH;
use latest::Latest;
pub use wiring::{changes_while_running, check_data, create_marked_data, makes_up_for_rows, serves_zookeepers_clients};

/// How many checked roots a replica remembers.
const ROOT_CACHE_MAX: usize = 65_536;

/// How many proved lies a minute go to the log, with their evidence. Metrics count all.
const LIES_LOGGED_A_MINUTE_MAX: u32 = 30;

/// Runs one replica until it is asked to stop (SIGTERM or Ctrl-C).
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// The replica's folder
    #[arg(value_name = "DIR/sN-rM")]
    folder: PathBuf,
    #[command(flatten)]
    regions: NodeRegions,
}

impl NodeArgs {
    /// The threads that the replica is to have.
    pub fn cores(&self) -> Cores {
        // What is wrong with its files is said when it runs.
        let config = NodeConfig::load(&self.folder, bezant_client::ENGINES);
        config.map_or(Cores::Replicas, |config| Cores::of_one_among(config.topology.replicas_on_host_of(config.replica)))
    }
}

/// How much of a core each of the replicas on this host can have, in percent, and no more than all of one.
fn core_percent(config: &NodeConfig) -> u8 {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let percent = 100 * cores / config.topology.replicas_on_host_of(config.replica).max(1);
    u8::try_from(percent.clamp(1, 100)).unwrap_or(100)
}

/// Carries out `bezant node`.
pub async fn run(args: &NodeArgs) -> Result<Done, Failure> {
    let load = || {
        let config = NodeConfig::load(&args.folder, bezant_client::ENGINES)?;
        Ok::<_, Failure>(NodeConfig { regions: args.regions.load()?, ..config })
    };
    key::take_waiting_key(&args.folder)?;
    let mut config = load()?;
    logs::start(&config.settings.log_level, config.settings.log_format)?;
    confine::prepare_for_replicas()?;
    let replica = config.replica;
    let broken_rule = mutant::from_environment()?;
    // Listened for from the start: coming back from a long journal can be interrupted too.
    let stop = runtime::shutdown::signal();
    let mut stop = pin!(stop);
    loop {
        let mut running = tokio::select! {
            running = Running::start(config, broken_rule, 1) => running?,
            _ = &mut stop => return Ok(Done::Well),
        };
        let failure = tokio::select! {
            cause = &mut stop => {
                let cause = cause.attempt("listen for signals", replica)?;
                tracing::info!(%replica, "stopping, asked to by {cause}");
                running.stop().await?;
                tracing::info!(%replica, "stopped");
                return Ok(Done::Well);
            }
            failure = running.failed() => failure,
        };
        if !running.is_taken_out() {
            return Err(failure);
        }
        if let Err(problem) = running.stop().await.and_then(|()| key::take_waiting_key(&args.folder)) {
            tracing::warn!(%replica, "cannot go on with another key: {problem}");
            return Err(failure);
        }
        // Where it has no key to go on with, what ended it is told.
        match load() {
            Ok(next) => config = next,
            Err(_) => return Err(failure),
        }
        tracing::info!(%replica, "goes on with its new key");
    }
}

/// Tells a machine of each new configuration. What it missed while it was told of one is in the next.
fn tell_of_changes<W: Send + 'static>(handle: NodeHandle<Instruction, W>, mut newest: watch::Receiver<Newest>) {
    tokio::spawn(async move {
        while newest.changed().await.is_ok() {
            let cluster = newest.borrow_and_update().cluster.clone();
            if handle.command(Instruction::Reconfigure(cluster)).await.is_err() {
                break;
            }
        }
    });
}

/// A running replica of any engine.
pub struct Running {
    replica: ReplicaId,
    public_key: [u8; 32],
    newest: watch::Receiver<Newest>,
    machine: Box<dyn RunningMachine>,
    /// Answers over HTTP until this is dropped.
    _window: LowPriority,
    ready_at: Instant,
}

impl Running {
    /// Starts a replica: listens, comes back from its disk, and goes to work. Of a rule broken on purpose it tells whoever asks. It shares
    /// its process with others: `replicas` are in it.
    pub async fn start(config: NodeConfig, broken_rule: Option<&'static str>, replicas: usize) -> Result<Self, Failure> {
        let replica = config.replica;
        let began = Instant::now();
        let listener = listen(config.listen, format!("{replica} cannot listen")).await?;
        let http = listen(config.http_listen, format!("{replica} cannot listen for HTTP")).await?;
        let metrics = Metrics::default();
        let (taken, newest) =
            watch::channel(Newest { cluster: config.topology.cluster.clone(), chain: Arc::new(config.topology.chain.clone()) });
        let latest = Latest::new(&config, newest, broken_rule);
        latest.clone().show_in(&metrics);
        monitoring::show_process(&metrics, env!("CARGO_PKG_VERSION"));
        monitoring::show_disk(&metrics, config.data.clone());
        let named = config.topology.endpoints.get(&replica).map(|endpoint| server::host_of(&endpoint.http).to_owned());
        let site = Site { metrics: Some(metrics.clone()), pages: latest.clone().pages(), names: named.into_iter().collect() };
        let window = server::start(http, site)
            .map_err(|error| Failure::failed(format!("{replica} cannot answer HTTP: {error}")).at(config.http_listen))?;
        let launch =
            Launch::new(&config, listener, metrics, latest, window, taken)?.with_clients_max(confine::connections_of_clients_max(replicas));
        let running = wiring::run(&config, launch).await?;
        let listen = config.listen;
        tracing::info!(%replica, %listen, seconds = began.elapsed().as_secs_f64(), "serving");
        Ok(running)
    }

    /// Waits until the replica does all that it is for.
    pub async fn ready(&self) {
        tokio::time::sleep_until(self.ready_at.into()).await;
    }

    /// Whether another key has its place by now.
    fn is_taken_out(&self) -> bool {
        self.newest.borrow().cluster.replica_key(self.replica) != Some(&self.public_key)
    }

    /// Waits for an end that nobody asked for.
    pub async fn failed(&mut self) -> Failure {
        let (replica, public_key) = (self.replica, self.public_key);
        let mut newest = self.newest.clone();
        let taken_out = async {
            let taken_out = newest.wait_for(|newest| newest.cluster.replica_key(replica) != Some(&public_key)).await;
            taken_out.map(|newest| newest.chain.version())
        };
        let error = tokio::select! {
            error = self.machine.failed() => error,
            Ok(version) = taken_out => {
                tracing::warn!(%replica, version, "another key has this replica's place: it stops");
                return Failure::failed(format!("since configuration {version} another key has this replica's place, so it stopped"))
                    .at(replica)
                    .help("where only the key was changed: bezant key use --rotate, and start it again");
            }
        };
        tracing::error!(replica = %self.replica, %error, "this replica has stopped");
        let found = if let NodeError::Persist(error) = &error { error.downcast_ref() } else { None };
        match found {
            // These say themselves what to do.
            Some(found @ (StoreError::RowsDamaged { .. } | StoreError::OlderCopy { .. })) => {
                Failure::failed(found.to_string()).at(self.replica).help("nothing acknowledged is lost: the others have it")
            }
            _ => Failure::failed(error.to_string())
                .at(self.replica)
                .help("mend the cause, then start it again; nothing acknowledged is lost"),
        }
    }

    /// Stops gracefully.
    pub async fn stop(self) -> Result<(), Failure> {
        self.machine.stop().await.map_err(|error| Failure::failed(error.to_string()).at(self.replica))
    }
}

/// How long a node waits for its address. A process that was killed keeps its own until its last thread has ended, which takes a while on
/// a busy machine, and is often started again at once.
pub const ADDRESS_WAIT: Duration = Duration::from_secs(5);

/// Listens at `address`, which may be in use for a moment longer.
async fn listen(address: SocketAddr, failed: String) -> Result<TcpListener, Failure> {
    let give_up = Instant::now() + ADDRESS_WAIT;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < give_up => {
                tokio::time::sleep(Duration::from_millis(50)).await
            }
            Err(error) => {
                let help = "is another node running there? Stop it, or change the port in node.toml and in every cluster.toml";
                return Err(Failure::failed(format!("{failed}: {error}")).at(address).help(help));
            }
        }
    }
}

type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A machine that runs, so that no type of an engine shows in whatever runs it.
trait RunningMachine: Send {
    /// Waits for an end that nobody asked for. May be dropped and called again.
    fn failed(&mut self) -> Later<'_, NodeError>;

    /// Stops it gracefully.
    fn stop(self: Box<Self>) -> Later<'static, Result<(), Box<dyn std::error::Error + Send + Sync>>>;
}

impl<R: Replica + Send + 'static, W: Wire> RunningMachine for Node<R, W> {
    fn failed(&mut self) -> Later<'_, NodeError> {
        Box::pin(Self::failed(self))
    }

    fn stop(self: Box<Self>) -> Later<'static, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async { Ok(Self::stop(*self).await?.close()?) })
    }
}

/// A replica that lacks only its machine, which the wiring brings.
struct Launch {
    replica: ReplicaId,
    public_key: [u8; 32],
    options: NodeOptions,
    signer: BatchSigner,
    latest: Arc<Latest>,
    window: LowPriority,
    newest: watch::Receiver<Newest>,
    keeper: Keeper,
}

impl Launch {
    fn new(
        config: &NodeConfig,
        listener: TcpListener,
        metrics: Metrics,
        latest: Arc<Latest>,
        window: LowPriority,
        taken: watch::Sender<Newest>,
    ) -> Result<Self, Failure> {
        let replica = config.replica;
        let newest = taken.subscribe();
        let file = config.chain_file.clone();
        let keeper = Keeper::start(folder_of(&config.data)).attempt("start a thread for evidence", replica)?;
        let (accuser, forks) = (latest.clone(), keeper.clone());
        let changes = wiring::changes_while_running(config.topology.engine).then(|| ChangeOptions {
            chain: config.topology.chain.clone(),
            keep: Box::new(move |chain| config::write_chain(&file, chain)),
            taken,
            forked: Box::new(move |fork| {
                accuser.count_misbehavior();
                forks.keep(Record::of_fork(fork));
            }),
        });
        let cluster = config.topology.cluster.clone();
        if config.topology.signatures != Signatures::Ed25519 {
            tracing::warn!("signatures are off: this cluster survives no lie and is for measurement only");
        }
        let me = Party::Replica(replica);
        let delays = config.regions.as_ref().map(|regions| {
            tracing::warn!(regions = regions.name(), region = regions.region_of(me), "latency is injected: for measuring and testing only");
            regions.delays_from(me)
        });
        let verifier = Verifier::new(cluster.clone(), config.topology.signatures, ROOT_CACHE_MAX)
            .map_err(|error| Failure::wrong(error.to_string()).at("cluster.toml").help("take cluster.toml as `bezant init` made it"))?;
        let verifier = Arc::new(verifier);
        metrics.show_verifier(verifier.clone());
        let identity =
            Identity::new(me, &config.secret, config.certificate.clone()).map_err(|error| Failure::wrong(error.to_string()).at(replica))?;
        let signer = BatchSigner::new(config.secret.clone(), cluster.id(), replica, config.topology.signatures).known_to(verifier.clone());
        let batch_max = usize::try_from(config.settings.batch_max).expect("node.toml bounds it");
        // With one thread for all that it does, a loop beside the connections is one thread less to hand over to.
        let run_on = match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => RunOn::Task,
            _ => RunOn::Thread,
        };
        let options = NodeOptions {
            identity,
            cluster,
            verifier,
            listener: Some(listener),
            replicas: config.topology.addresses(),
            limits: Limits { batch_max, core_percent: core_percent(config), ..Limits::default() },
            run_on,
            metrics,
            clock: None,
            delays,
            changes,
        };
        Ok(Self { replica, public_key: config.secret.public(), options, signer, latest, window, newest, keeper })
    }

    /// The same, with so many connections of clients at most.
    fn with_clients_max(mut self, clients_connections_max: usize) -> Self {
        self.options.limits.clients_connections_max = clients_connections_max;
        self
    }

    /// Runs `machine`, which does all that it is for once it has run for `warm_up`.
    fn run<R>(self, machine: R, warm_up: Duration) -> Result<Running, Failure>
    where
        R: Replica<Received = Verified<<R as Machine>::Message>> + Send + 'static,
        R::Message: Wire,
        R::Unsigned: Signable<Message = R::Message> + Send,
        R::Event: Send,
    {
        let Self { replica, public_key, options, signer, latest, window, newest, keeper } = self;
        keep_all(&keeper, latest.post_first(&machine));
        let (looker, accuser, kept) = (latest.clone(), latest.clone(), keeper.clone());
        let log = LogLimit::new(LIES_LOGGED_A_MINUTE_MAX);
        let on_event = move |event| {
            if let Some(found) = R::misbehavior(&event) {
                let Misbehavior { who, what, evidence, .. } = &found;
                accuser.count_misbehavior();
                keeper.keep(record(&found, R::signed_proof(&event).map(hex::encode)));
                // A liar can lie without end.
                if let Some(left_out) = log.admit(Instant::now()) {
                    tracing::error!(%who, evidence, left_out = left_out.noted(), "{what}");
                }
            }
            if let Some(report) = R::clock_of(&event) {
                accuser.note_clock(report);
            }
            R::committed_by(&event)
        };
        let machine = runtime::start(options, machine, signer, move |machine: &R| keep_all(&kept, looker.post(machine)), on_event)
            .map_err(|error| Failure::failed(error.to_string()).at(replica))?;
        let ready_at = Instant::now() + warm_up;
        latest.serve(machine.handle(), ready_at);
        tell_of_changes(machine.handle(), newest.clone());
        Ok(Running { replica, public_key, newest, machine: Box::new(machine), _window: window, ready_at })
    }
}

fn keep_all(keeper: &Keeper, found: Vec<divergences::Kept>) {
    found.into_iter().for_each(|one| keeper.keep_divergence(one));
}

/// What is kept of a lie.
fn record(found: &Misbehavior, proof: Option<String>) -> Record {
    let (key, transaction) = (found.public_key.map(hex::encode), Some(found.evidence.clone()));
    Record { time_ms: now_ms(), who: found.who.to_string(), key, what: found.what.to_owned(), transaction, proof, is_lifted: false }
}

/// Whose data a replica's are, as its disk has it. What executes its journal otherwise than before is a part of it, so that it is refused.
pub fn owner(cluster: &Cluster, replica: ReplicaId) -> String {
    let room = cluster.pending_min().map(|least| format!(" with pending_min {least}")).unwrap_or_default();
    format!("cluster {} replica {replica}{room}", cluster.id())
}

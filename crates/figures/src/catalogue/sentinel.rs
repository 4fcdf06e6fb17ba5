//! The evaluation of the thesis on fault detection in ZooKeeper (chapter 5).

use super::point;
use crate::plan::{Cell, Claim, Cluster, Figure, Layout, Panel, Point, Program, Servers, Value};

/// The thesis has 300 clients at each of three servers, each with up to 100 requests under way and a node of its own.
const LOAD: &str = "--clients 30 --outstanding 100 --nodes 1";
/// How many of a hundred requests read.
const READS: [u32; 11] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
/// The same where sizes differ.
const FEW_READS: [u32; 5] = [0, 25, 50, 75, 100];
/// How many bytes a request reads or writes where they differ, and the figures.
const SIZES: [(u32, &str); 5] =
    [(64, "5.7: 64 B"), (256, "5.8: 256 B"), (512, "5.9: 512 B"), (1_024, "5.10: 1,024 B"), (2_048, "5.11: 2,048 B")];
/// How many where they do not.
const BYTES: u32 = 1_024;

pub fn figures() -> Vec<Figure> {
    vec![detection(), sizes()]
}

/// Other numbers of a figure.
pub fn others(figure: &str) -> &'static [&'static str] {
    match figure {
        "sentinel-5.2" => &["5.3", "5.4", "5.5", "5.6"],
        "sentinel-5.7" => &["5.8", "5.9", "5.10", "5.11"],
        _ => &[],
    }
}

/// How servers notice damage, if they do.
#[derive(Clone, Copy)]
struct Way {
    /// What it is called.
    name: &'static str,
    program: Program,
    /// What their `zoo.cfg` says of it.
    lines: &'static [&'static str],
}

const fn ours(name: &'static str, lines: &'static [&'static str]) -> Way {
    Way { name, program: Program::Bezant, lines }
}

const NONE: Way = ours("none", &["bezant.digest=off"]);
/// The thesis' hash functions, in the order of its tables, with each way to compare.
const ONLINE: [Way; 5] = [
    ours("online CRC-32", &["bezant.detection=online", "bezant.digest=crc32"]),
    ours("online MD5", &["bezant.detection=online", "bezant.digest=md5"]),
    ours("online SHA-256", &["bezant.detection=online", "bezant.digest=sha256"]),
    ours("online SHA-512", &["bezant.detection=online", "bezant.digest=sha512"]),
    ours("online SHA-1", &["bezant.detection=online", "bezant.digest=sha1"]),
];
const REALTIME: [Way; 5] = [
    ours("realtime CRC-32", &["bezant.detection=realtime", "bezant.digest=crc32"]),
    ours("realtime MD5", &["bezant.detection=realtime", "bezant.digest=md5"]),
    ours("realtime SHA-256", &["bezant.detection=realtime", "bezant.digest=sha256"]),
    ours("realtime SHA-512", &["bezant.detection=realtime", "bezant.digest=sha512"]),
    ours("realtime SHA-1", &["bezant.detection=realtime", "bezant.digest=sha1"]),
];
const ONLINE_WIDE: Way = ours("online SHA-256 wide", &["bezant.detection=online", "bezant.digest=sha256-wide"]);
const REALTIME_WIDE: Way = ours("realtime SHA-256 wide", &["bezant.detection=realtime", "bezant.digest=sha256-wide"]);
const ONLINE_LATTICE: Way = ours("online LtHash16", &["bezant.detection=online", "bezant.digest=lthash16"]);
const REALTIME_LATTICE: Way = ours("realtime LtHash16", &["bezant.detection=realtime", "bezant.digest=lthash16"]);
const ZOOKEEPER_NONE: Way = Way { name: "ZooKeeper, no digest", program: Program::ZooKeeper, lines: &["digest.enabled=false"] };
const ZOOKEEPER: Way = Way { name: "ZooKeeper, CRC-32", program: Program::ZooKeeper, lines: &["digest.enabled=true"] };

impl Way {
    fn cluster(self) -> Cluster {
        Cluster { servers: Some(Servers { program: self.program, lines: self.lines.to_vec() }), ..Cluster::default() }
    }

    /// A run of the first figure.
    fn id(self, reads: u32) -> String {
        format!("{}, {reads} % reads", self.name)
    }

    /// A run of the second.
    fn id_of_size(self, bytes: u32, reads: u32) -> String {
        format!("{bytes} B, {}", self.id(reads))
    }

    fn points(self) -> (String, Vec<Point>) {
        let one = |reads| point(self.id(reads), f64::from(reads), self.cluster(), &bench(reads, BYTES));
        (self.name.to_owned(), READS.into_iter().map(one).collect())
    }

    fn points_of_size(self, bytes: u32) -> (String, Vec<Point>) {
        let one = |reads| point(self.id_of_size(bytes, reads), f64::from(reads), self.cluster(), &bench(reads, bytes));
        (self.name.to_owned(), FEW_READS.into_iter().map(one).collect())
    }

    /// Writes of every size.
    fn writes(self) -> (String, Vec<Point>) {
        let one = |(bytes, _)| point(self.id_of_size(bytes, 0), f64::from(bytes), self.cluster(), &bench(0, bytes));
        (self.name.to_owned(), SIZES.into_iter().map(one).collect())
    }
}

fn bench(reads: u32, bytes: u32) -> String {
    format!("--reads {reads} --bytes {bytes} {LOAD}")
}

/// The thesis' numbers, and ours, are of three servers that do nothing else.
fn detection() -> Figure {
    let panel = |title, y, ways: &[Way]| Panel {
        title,
        x: "requests that read, %",
        y,
        layout: Layout::Lines,
        series: ways.iter().map(|way| way.points()).collect(),
    };
    let with_none = |ways: [Way; 5]| [&[NONE], ways.as_slice()].concat();
    let beside = [NONE, REALTIME_WIDE, ZOOKEEPER_NONE, ZOOKEEPER];
    Figure {
        name: "sentinel-5.2",
        title: "What detection costs three servers for ZooKeeper's clients",
        source: "ZooKeeper thesis, §5.3 to §5.5, figures 5.2 to 5.6, tables 5.1 and 5.2",
        about: "Three servers, started by `bezant zookeeper` from a `zoo.cfg` each, with keys of their own and TLS between them, and \
                one process with 30 clients that each keep 100 requests of 1 KiB under way, all on the same cores. The thesis has \
                ZooKeeper 3.7 on three machines of eight cores, with a disk for each log, and 900 clients on three more; nodes are \
                ephemeral there. With so many clients two cores are busy with 30 as well: more would only wait longer. *None* is \
                without digests, *online* keeps them to be compared later, *realtime* also foresees each, compares it, and looks at \
                what is read before it is answered. Where the data lie is said with each point: with `--work` on a file system in \
                memory, a sync takes no time, so that the hashes are not hidden behind a disk that three servers share. SHA-256 wide \
                (the default) and LtHash16 are not in the thesis. What is said of ZooKeeper was measured before, with 3.9.5, \
                `forceSync=no`, and the same load on two such cores (there, *online* and the other hashes are a patch of ours). \
                `--zookeeper DIR` measures an installation of it beside ours, by what its own settings can do.",
        panels: vec![
            panel("5.2: online comparison", Value::Requests, &[NONE, ONLINE[0]]),
            panel("5.3: realtime detection", Value::Requests, &[NONE, REALTIME[0]]),
            panel("5.4: online and realtime", Value::Requests, &[ONLINE[0], REALTIME[0]]),
            panel("5.5: hashes, online", Value::Requests, &with_none(ONLINE)),
            panel("5.6: hashes, realtime", Value::Requests, &with_none(REALTIME)),
            panel("Hashes of our own", Value::Requests, &[NONE, ONLINE_WIDE, REALTIME_WIDE, ONLINE_LATTICE, REALTIME_LATTICE]),
            panel("Cost, realtime", Value::ServerCpuUs, &[NONE, REALTIME[0], REALTIME[2], REALTIME[3], REALTIME_WIDE, REALTIME_LATTICE]),
            panel("Beside ZooKeeper", Value::Requests, &beside),
            panel("Beside ZooKeeper: cost", Value::ServerCpuUs, &beside),
        ],
        claims: [costs(), rates(), tables()].concat(),
    }
}

fn costs() -> Vec<Claim> {
    let slower = |what, paper, way: Way, reads| Claim::change(what, paper, Value::Requests, &way.id(reads), &NONE.id(reads));
    let dearer = |what, paper, way: Way| Claim::times(what, paper, Value::ServerCpuUs, &way.id(0), &NONE.id(0));
    vec![
        slower("online, CRC-32: throughput of writes, against none", "−2 %; ZooKeeper −7 to −13 %", ONLINE[0], 0),
        slower("the same, half of the requests read", "−6 %", ONLINE[0], 50),
        slower("the same, all read", "0 %", ONLINE[0], 100),
        slower("realtime, CRC-32: throughput of writes, against none", "−20 %; ZooKeeper −4 to −10 %", REALTIME[0], 0),
        slower("the same, half of the requests read", "−9 %; ZooKeeper −2 %", REALTIME[0], 50),
        slower("the same, all read", "about 0 %; ZooKeeper −3 %", REALTIME[0], 100),
        slower("realtime, SHA-256: writes", "−39 %; ZooKeeper −12 to −18 %", REALTIME[2], 0),
        slower("realtime, SHA-512: writes", "−38 %; ZooKeeper −23 %", REALTIME[3], 0),
        slower("realtime, SHA-256 wide: writes", "not in the thesis", REALTIME_WIDE, 0),
        slower("the same, half of the requests read", "not in the thesis", REALTIME_WIDE, 50),
        slower("the same, all read", "not in the thesis", REALTIME_WIDE, 100),
        slower("realtime, LtHash16: writes", "not in the thesis", REALTIME_LATTICE, 0),
        dearer("the servers' CPU time of a write: online CRC-32, of none", "not given; ZooKeeper 1.06× to 1.12×", ONLINE[0]),
        dearer("realtime CRC-32, of none", "not given; ZooKeeper 1.04× to 1.09×", REALTIME[0]),
        dearer("realtime SHA-256, of none", "not given; ZooKeeper 1.08× to 1.16×", REALTIME[2]),
        dearer("realtime SHA-512, of none", "not given; ZooKeeper 1.23×", REALTIME[3]),
        dearer("realtime SHA-256 wide, of none", "not in the thesis", REALTIME_WIDE),
        dearer("realtime LtHash16, of none", "not in the thesis", REALTIME_LATTICE),
    ]
}

fn rates() -> Vec<Claim> {
    let rate = |what, paper, way: Way, reads| Claim::number(what, paper, Value::Requests, &way.id(reads));
    let of = |what, reads| Claim::times(what, "not in the thesis", Value::Requests, &REALTIME_WIDE.id(reads), &ZOOKEEPER.id(reads));
    vec![
        rate("without detection: writes a second", "ZooKeeper 30,294 to 34,770", NONE, 0),
        rate("half of the requests read: requests a second", "ZooKeeper 21,128", NONE, 50),
        rate("all read", "ZooKeeper 64,922", NONE, 100),
        of("realtime SHA-256 wide: writes, of ZooKeeper's with its own digest, beside it", 0),
        of("the same, half of the requests read", 50),
        of("the same, all read", 100),
    ]
}

/// The columns of the thesis' tables.
const COLUMNS: [&str; 5] = ["CRC-32", "MD5", "SHA-256", "SHA-512", "SHA-1"];
/// By how many percent throughput is less than without detection; a row for each tenth of the requests that reads.
const TABLE_1: [[&str; 5]; 10] = [
    ["2", "1", "4", "2", "0"],
    ["2", "4", "13", "8", "7"],
    ["6", "9", "20", "14", "12"],
    ["4", "9", "20", "15", "12"],
    ["6", "9", "23", "18", "14"],
    ["6", "11", "25", "21", "16"],
    ["7", "12", "24", "21", "17"],
    ["7", "10", "22", "18", "15"],
    ["5", "9", "19", "16", "13"],
    ["4", "7", "15", "12", "11"],
];
const TABLE_2: [[&str; 5]; 10] = [
    ["20", "15", "39", "38", "31"],
    ["15", "17", "41", "36", "30"],
    ["16", "18", "45", "38", "31"],
    ["12", "15", "42", "37", "26"],
    ["12", "14", "40", "34", "28"],
    ["9", "14", "37", "28", "24"],
    ["8", "14", "29", "25", "20"],
    ["6", "11", "25", "19", "16"],
    ["6", "9", "22", "15", "14"],
    ["4", "7", "17", "12", "12"],
];

fn tables() -> Vec<Claim> {
    let table = |what: &'static str, rows: [[&'static str; 5]; 10], ways: [Way; 5]| -> Vec<Claim> {
        let row = |(reads, papers): (u32, [&'static str; 5])| {
            let cell = move |at: usize| {
                let cell = Cell { row: format!("{reads} % reads"), column: COLUMNS[at] };
                Claim::less(cell, what, papers[at], Value::Requests, &ways[at].id(reads), &NONE.id(reads))
            };
            (0..COLUMNS.len()).map(cell).collect::<Vec<_>>()
        };
        READS.into_iter().zip(rows).flat_map(row).collect()
    };
    [
        table("Table 5.1: by how many percent throughput is less with online comparison", TABLE_1, ONLINE),
        table("Table 5.2: by how many percent throughput is less with realtime detection", TABLE_2, REALTIME),
    ]
    .concat()
}

fn sizes() -> Figure {
    let ways = [NONE, ONLINE[0], REALTIME[0], REALTIME[2], REALTIME_WIDE, ZOOKEEPER_NONE, ZOOKEEPER];
    let panel = |(bytes, title): (u32, &'static str)| Panel {
        title,
        x: "requests that read, %",
        y: Value::Requests,
        layout: Layout::Lines,
        series: ways.iter().map(|way| way.points_of_size(bytes)).collect(),
    };
    let cost = Panel {
        title: "Cost of a write, by its size",
        x: "bytes",
        y: Value::ServerCpuUs,
        layout: Layout::LinesOverLog,
        series: ways.iter().map(|way| way.writes()).collect(),
    };
    let against =
        |what, way: Way, bytes| Claim::change(what, "not given", Value::Requests, &way.id_of_size(bytes, 0), &NONE.id_of_size(bytes, 0));
    Figure {
        name: "sentinel-5.7",
        title: "What detection costs, by the size of requests",
        source: "ZooKeeper thesis, §5.6, figures 5.7 to 5.11",
        about: "The servers and the load of figures 5.2 to 5.6, with requests of 64 to 2,048 bytes. The thesis' text gives no numbers; \
                it says that large requests with strong hashes cost most.",
        panels: SIZES.into_iter().map(panel).chain([cost]).collect(),
        claims: vec![
            against("realtime CRC-32, writes of 64 bytes: throughput, against none", REALTIME[0], 64),
            against("the same of 2,048 bytes", REALTIME[0], 2_048),
            against("realtime SHA-256, of 64 bytes", REALTIME[2], 64),
            against("the same of 2,048 bytes", REALTIME[2], 2_048),
            against("realtime SHA-256 wide, of 64 bytes", REALTIME_WIDE, 64),
            against("the same of 2,048 bytes", REALTIME_WIDE, 2_048),
        ],
    }
}

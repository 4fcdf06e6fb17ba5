//! kazoo, a client of ZooKeeper for Python, unchanged, with its recipes.
//!
//! `BEZANT_KAZOO_PYTHON` names a Python that has it, or `python3` does; where neither has, nothing is tried, and the test says so.

use std::path::Path;
use std::process::Command;

use zookeeper::{Config, Running};

#[test]
fn kazoos_recipes_work() {
    let python = std::env::var("BEZANT_KAZOO_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_kazoo = Command::new(&python).args(["-c", "import kazoo"]).output().is_ok_and(|output| output.status.success());
    if !has_kazoo {
        eprintln!(
            "skipped: {python} has no kazoo; `pip install kazoo` in a virtual environment, and name its Python in BEZANT_KAZOO_PYTHON"
        );
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!(
        "clientPort=0\nclientPortAddress=127.0.0.1\ntickTime=1000\nsnapCount=50\n4lw.commands.whitelist=*\ndataDir={}\n",
        folder.path().display()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let running = runtime.block_on(Running::start(Config::parse(&text).expect("it is a good file"))).expect("it starts");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kazoo_recipes.py");
    let output = Command::new(&python).arg(script).arg(running.address().to_string()).output().expect("Python starts");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{failed}");
    assert!(said.contains(" checks: "), "{said}");
    eprintln!("{said}");
    runtime.block_on(running.stop()).expect("it stops");
}

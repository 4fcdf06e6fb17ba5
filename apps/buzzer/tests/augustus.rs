//! Buzzer on a cluster of Augustus with two shards: users up to `m` are on the first. Then the same with a browser, where there is one.

mod place;

#[test]
fn the_network_keeps_its_promises_on_augustus() {
    place::on_cluster("augustus", &["--shards", "2", "--placement", "ranges:buzzer/m"], async |place| {
        place::network::all(&place).await;
        place::site::all(&place).await;
        place::account::all(&place).await;
        place::limits::all(&place).await;
        place::browser::all(&place).await;
    });
}

//! Buzzer on a cluster of Basil.

mod place;

#[test]
fn the_network_keeps_its_promises_on_basil() {
    place::on_cluster("basil", &[], async |place| {
        place::network::all(&place).await;
        place::site::all(&place).await;
        place::account::all(&place).await;
        place::limits::all(&place).await;
    });
}

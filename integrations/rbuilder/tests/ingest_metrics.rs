//! Our metrics in the registry that rbuilder serves.

use prometheus::Registry;
use rbuilder_integration::ingest_metrics::serve_in;

#[test]
fn what_the_crates_record_is_in_the_registry() {
    let registry = Registry::new();
    serve_in(&registry).expect("the first recorder");
    metrics::counter!("mempool_fetcher_hashes_total", "entry" => "announced").increment(3);
    metrics::gauge!("blocklist_addresses").set(7.0);
    metrics::histogram!("mempool_fetcher_deliver_seconds").record(0.001);
    let families = registry.gather();
    let names: Vec<_> = families.iter().map(|family| family.get_name()).collect();
    assert_eq!(
        names,
        ["blocklist_addresses", "mempool_fetcher_deliver_seconds", "mempool_fetcher_hashes_total"]
    );
    assert_eq!(families[2].get_metric()[0].get_counter().get_value(), 3.0);
    assert!(serve_in(&registry).is_err(), "a program has one recorder");
}

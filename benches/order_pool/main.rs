//! Compares the order pool with a pool behind one mutex, under the loads of a builder.
//!
//! `cargo bench --bench order_pool` runs all of it in a few minutes. `-- --test` is a quick pass
//! that only shows that it works. Every goal but that of the holds is a ratio of two figures of the
//! same run.

mod holds;
mod load;
mod rival;
mod table;

use testkit::bench::Args;

fn main() {
    let args = Args::read();
    let quick = args.has("--test");
    let scale = load::Scale::new(quick);
    if args.words.contains(&"holds".to_owned()) {
        println!("{}", table::shared(&scale));
        println!("{}", holds::holds(quick));
        return;
    }
    println!("orders replayed: {}, rounds: {}", scale.replayed, scale.rounds);
    let mut goals = vec![table::joining(&scale)];
    goals.push(table::shared(&scale));
    goals.push(holds::holds(quick));
    println!("\ngoals (a busy machine moves them; take them on an idle one)");
    for goal in goals {
        println!("  {goal}");
    }
}

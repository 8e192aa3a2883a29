//! The parts from outside.

mod gate;
mod metric_set;

//! Tests of the public interface.

mod gate;
mod metric_set;

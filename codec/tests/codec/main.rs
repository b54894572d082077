//! The coders from outside: round trips, damage, another DEFLATE as the oracle, bytes that later versions must read.

mod damage;
mod golden;
mod hostile_tables;
mod oracle;
mod pages;
mod round_trip;
mod several_tables;

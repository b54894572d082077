//! Integration tests of Dormouse.

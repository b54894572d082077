//! How likely the host ends a pod's VMM when its memory is short.

use std::fs;

/// Makes a VMM and its stubs as likely to be ended as the container in it that may be ended first. Never less likely: other
/// containers may be left. (A stub that is made later inherits it.)
pub(super) fn raise(vmm: i32, score: i32) {
    let mut all = vec![vmm];
    let mut at = 0;
    while let Some(pid) = all.get(at).copied() {
        at += 1;
        let path = format!("/proc/{pid}/oom_score_adj");
        let now = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<i32>().ok());
        if now.is_some_and(|now| now < score) {
            // One that has just ended needs none.
            let _ = fs::write(&path, score.to_string());
        }
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
        }
    }
}

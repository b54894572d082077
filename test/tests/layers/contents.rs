//! Declarations and imports of one source file.

use crate::tokens::Token;

/// The declarations and imports of one source file. Modules within the file are named by their path in it.
#[derive(Debug, Default)]
pub struct Contents {
    pub modules: Vec<Declared>,
    pub paths: Vec<Mention>,
    /// Macros that the whole crate sees in its root (`#[macro_export]`).
    pub exported_macros: Vec<String>,
    /// Nothing but modules and external crates are declared.
    pub only_declares: bool,
}

/// A module that a file declares.
#[derive(Debug, PartialEq, Eq)]
pub struct Declared {
    pub path: Vec<String>,
    pub body: Body,
}

/// Where a module's source is.
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    Inline,
    /// In the file that has its name.
    OwnFile,
    /// In the file of a `#[path]` attribute.
    At(String),
}

/// A path as it is written in a module.
#[derive(Debug, PartialEq, Eq)]
pub struct Mention {
    /// The module within the file, empty for the file's own.
    pub inside: Vec<String>,
    pub path: Vec<String>,
    /// The name that a `use` gives to it.
    pub alias: Option<String>,
}

/// Leaves out code that is compiled only for tests: items after a `#[cfg(test)]` or a `#[test]`.
pub fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if let Some(inner) = inner_attribute(&tokens[at..]) {
            if is_test_only(inner) {
                at = group_end(tokens, at);
                continue;
            }
            kept.extend_from_slice(&tokens[at..at + inner.len() + 4]);
            at += inner.len() + 4;
            continue;
        }
        let mut end = at;
        let mut is_test = false;
        while let Some(attribute) = attribute(&tokens[end..]) {
            is_test |= is_test_only(attribute);
            end += attribute.len() + 3;
        }
        if is_test {
            at = item_end(tokens, end);
        } else {
            let end = end.max(at + 1);
            kept.extend_from_slice(&tokens[at..end]);
            at = end;
        }
    }
    kept
}

/// The tokens between the brackets of the attribute `#[…]` that `tokens` begin with.
fn attribute(tokens: &[Token]) -> Option<&[Token]> {
    match tokens {
        [Token::Punct('#'), Token::Punct('['), ..] => Some(&tokens[2..group_end(tokens, 2)]),
        _ => None,
    }
}

/// The tokens between the brackets of the inner attribute `#![…]` that `tokens` begin with.
fn inner_attribute(tokens: &[Token]) -> Option<&[Token]> {
    match tokens {
        [Token::Punct('#'), Token::Punct('!'), Token::Punct('['), ..] => {
            Some(&tokens[3..group_end(tokens, 3)])
        }
        _ => None,
    }
}

/// The bracket that closes the group in which the token `at` lies, or the end of the file.
fn group_end(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token {
            Token::Punct('(' | '[' | '{') => depth += 1,
            Token::Punct(')' | ']' | '}') if depth == 0 => return index,
            Token::Punct(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Whether a predicate of `cfg`, or an attribute, holds in tests alone.
fn is_test_only(predicate: &[Token]) -> bool {
    match predicate {
        [Token::Word(word)] => word == "test",
        [Token::Word(word), Token::Punct('('), inner @ .., Token::Punct(')')] => {
            let mut parts = split_at_commas(inner).into_iter();
            match word.as_str() {
                "cfg" | "all" => parts.any(is_test_only),
                "any" => !inner.is_empty() && parts.all(is_test_only),
                _ => false,
            }
        }
        _ => false,
    }
}

fn split_at_commas(tokens: &[Token]) -> Vec<&[Token]> {
    let mut depth = 0;
    tokens
        .split(|token| {
            match token {
                Token::Punct('(') => depth += 1,
                Token::Punct(')') => depth -= 1,
                _ => {}
            }
            depth == 0 && *token == Token::Punct(',')
        })
        .filter(|part| !part.is_empty())
        .collect()
}

/// How the thing after an attribute ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// At the semicolon: `use`, `static`, `let`.
    Semicolon,
    /// At the semicolon or the end of the body: `fn`, `mod`, `impl`.
    Body,
    /// At the comma, too: a field, a variant, an arm, an argument.
    Part,
}

/// The index after the thing that begins at `start`; its attributes are before that.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let end = end_of_kind(&tokens[start..]);
    let mut depth = 0;
    for at in start..tokens.len() {
        match tokens[at] {
            Token::Punct('(' | '[' | '{') => depth += 1,
            Token::Punct(')' | ']' | '}') if depth == 0 => return at,
            Token::Punct(closing @ (')' | ']' | '}')) => {
                depth -= 1;
                let goes_on = tokens.get(at + 1).is_some_and(|next| next.is_word("else"));
                if depth == 0 && closing == '}' && end != End::Semicolon && !goes_on {
                    return at + 1;
                }
            }
            Token::Punct(';') if depth == 0 => return at + 1,
            Token::Punct(',') if depth == 0 && end == End::Part => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

fn end_of_kind(tokens: &[Token]) -> End {
    let tokens = &tokens[visibility_len(tokens)..];
    let Some(Token::Word(first)) = tokens.first() else { return End::Part };
    match first.as_str() {
        "use" | "let" | "static" | "type" => End::Semicolon,
        // `const unsafe extern "C" fn` is the longest way to a function.
        "const" if tokens.iter().take(5).any(|token| token.is_word("fn")) => End::Body,
        "const" => End::Semicolon,
        "mod" | "fn" | "impl" | "struct" | "enum" | "union" | "trait" | "extern" | "unsafe" | "async"
        | "macro_rules" => End::Body,
        _ => End::Part,
    }
}

/// Tokens of the visibility that `tokens` begin with, if any.
fn visibility_len(tokens: &[Token]) -> usize {
    match tokens {
        [first, Token::Punct('('), ..] if first.is_word("pub") => group_end(tokens, 2) + 1,
        [first, ..] if first.is_word("pub") => 1,
        _ => 0,
    }
}

/// The declarations and imports in `tokens`.
pub fn contents(tokens: &[Token]) -> Contents {
    let mut reader = Reader { tokens, at: 0, depth: 0, inside: Vec::new(), found: Contents::default() };
    reader.read();
    Contents { only_declares: only_declares(tokens), ..reader.found }
}

/// Whether `tokens` are nothing but attributes, `mod name;` and `extern crate name;`.
fn only_declares(mut tokens: &[Token]) -> bool {
    while !tokens.is_empty() {
        let skipped = if let Some(inner) = inner_attribute(tokens) {
            inner.len() + 4
        } else if let Some(outer) = attribute(tokens) {
            outer.len() + 3
        } else {
            let visibility = visibility_len(tokens);
            match &tokens[visibility..] {
                [keyword, Token::Word(_), Token::Punct(';'), ..] if keyword.is_word("mod") => visibility + 3,
                [first, second, Token::Word(_), Token::Punct(';'), ..]
                    if first.is_word("extern") && second.is_word("crate") =>
                {
                    visibility + 4
                }
                _ => return false,
            }
        };
        tokens = &tokens[skipped.min(tokens.len())..];
    }
    true
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    /// Open braces.
    depth: usize,
    /// The inline modules around the next token, each with the braces open outside it.
    inside: Vec<(String, usize)>,
    found: Contents,
}

impl Reader<'_> {
    fn read(&mut self) {
        let mut path_attribute = None;
        let mut is_exported = false;
        while self.at < self.tokens.len() {
            let rest = &self.tokens[self.at..];
            match rest {
                [Token::Punct('{'), ..] => {
                    self.depth += 1;
                    self.at += 1;
                }
                [Token::Punct('}'), ..] => {
                    self.depth = self.depth.saturating_sub(1);
                    self.inside.retain(|&(_, outside)| outside < self.depth);
                    self.at += 1;
                }
                [Token::Punct('#'), Token::Punct('['), word, Token::Punct('='), Token::Text(file), ..]
                    if word.is_word("path") =>
                {
                    path_attribute = Some(file.clone());
                    self.at += 5;
                }
                [Token::Punct('#'), Token::Punct('['), word, ..] if word.is_word("macro_export") => {
                    is_exported = true;
                    self.at += 3;
                }
                [word, Token::Punct('!'), Token::Word(name), ..] if word.is_word("macro_rules") => {
                    if std::mem::take(&mut is_exported) {
                        self.found.exported_macros.push(name.clone());
                    }
                    self.at += 3;
                }
                [word, Token::Word(name), Token::Punct(next @ (';' | '{')), ..] if word.is_word("mod") => {
                    self.module(name, *next == '{', path_attribute.take());
                }
                // A visibility is no import.
                [word, Token::Punct('('), within, ..] if word.is_word("pub") && within.is_word("in") => {
                    self.at += visibility_len(rest);
                }
                [word, next, ..] if word.is_word("use") && *next != Token::Punct('<') => {
                    self.at += 1;
                    self.use_tree(&[], true);
                }
                [Token::Word(_), Token::PathSep, ..] if self.begins_path() => self.use_tree(&[], false),
                _ => self.at += 1,
            }
        }
    }

    fn module(&mut self, name: &str, is_inline: bool, file: Option<String>) {
        let path = self.inside.iter().map(|(name, _)| name).cloned().chain([name.to_owned()]).collect();
        let body = match file {
            _ if is_inline => Body::Inline,
            Some(file) => Body::At(file),
            None => Body::OwnFile,
        };
        self.found.modules.push(Declared { path, body });
        if is_inline {
            self.inside.push((name.to_owned(), self.depth));
            self.depth += 1;
        }
        self.at += 3;
    }

    /// Whether a path may begin here: not after `::`, and not at the name of a method. A range's `..` may precede.
    fn begins_path(&self) -> bool {
        match &self.tokens[..self.at] {
            [.., Token::PathSep] => false,
            [.., Token::Punct('.'), Token::Punct('.')] => true,
            [.., Token::Punct('.')] => false,
            _ => true,
        }
    }

    /// Reads a path, or a tree of them below `prefix`. Outside of `use` it ends where type arguments begin.
    fn use_tree(&mut self, prefix: &[String], is_use: bool) {
        let mut path = prefix.to_vec();
        loop {
            match self.tokens.get(self.at) {
                // A macro's `$crate`.
                Some(Token::Punct('$')) if path.is_empty() => self.at += 1,
                // `::name` is another crate's: no module is called "".
                Some(Token::PathSep) if path.is_empty() => {
                    path.push(String::new());
                    self.at += 1;
                }
                Some(Token::Word(word)) => {
                    self.at += 1;
                    if word != "self" || path.is_empty() {
                        path.push(word.clone());
                    }
                    if self.tokens.get(self.at) == Some(&Token::PathSep) {
                        self.at += 1;
                        continue;
                    }
                    let alias = if is_use { self.alias(path.last()) } else { None };
                    return self.mention(path, alias);
                }
                Some(Token::Punct('*')) if is_use => {
                    self.at += 1;
                    path.push("*".into());
                    return self.mention(path, None);
                }
                Some(Token::Punct('{')) if is_use => return self.branches(&path),
                _ => return self.mention(path, None),
            }
        }
    }

    /// Reads the trees between braces.
    fn branches(&mut self, prefix: &[String]) {
        self.at += 1;
        loop {
            match self.tokens.get(self.at) {
                None => return,
                Some(Token::Punct('}')) => {
                    self.at += 1;
                    return;
                }
                Some(Token::Word(_) | Token::Punct('{' | '*')) => self.use_tree(prefix, true),
                Some(Token::PathSep) if prefix.is_empty() => self.use_tree(prefix, true),
                Some(_) => self.at += 1,
            }
        }
    }

    /// The name that a `use` gives to an import: its `own`, or the one after `as`.
    fn alias(&mut self, own: Option<&String>) -> Option<String> {
        match &self.tokens[self.at..] {
            [keyword, Token::Word(name), ..] if keyword.is_word("as") => {
                self.at += 2;
                Some(name.clone())
            }
            _ => own.cloned(),
        }
    }

    fn mention(&mut self, path: Vec<String>, alias: Option<String>) {
        if !path.is_empty() {
            let inside = self.inside.iter().map(|(name, _)| name.clone()).collect();
            self.found.paths.push(Mention { inside, path, alias });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    /// The paths that `source` mentions outside of tests, each with its alias if that is not its own name.
    fn paths(source: &str) -> Vec<String> {
        let found = contents(&without_tests(&tokens(source)));
        let shown = found.paths.iter().map(|Mention { inside, path, alias }| {
            let inside: String = inside.iter().map(|name| format!("{name}/")).collect();
            let renamed = alias.as_ref().filter(|alias| path.last() != Some(alias));
            let renamed = renamed.map(|alias| format!(" as {alias}")).unwrap_or_default();
            format!("{inside}{}{renamed}", path.join("::"))
        });
        shown.collect()
    }

    /// The modules that `source` declares outside of tests.
    fn modules(source: &str) -> Vec<(String, Body)> {
        let found = contents(&without_tests(&tokens(source)));
        found.modules.into_iter().map(|module| (module.path.join("::"), module.body)).collect()
    }

    #[test]
    fn use_trees_give_each_of_their_paths() {
        assert_eq!(
            paths("use crate::{a, b::{self, C as D, e::*}, f::g as h};"),
            ["crate::a", "crate::b", "crate::b::C as D", "crate::b::e::*", "crate::f::g as h"]
        );
        assert_eq!(paths("pub use child::X; use {super::a, self::b,};"), ["child::X", "super::a", "self::b"]);
        assert_eq!(paths("use super::*; use crate::t::T as _;"), ["super::*", "crate::t::T as _"]);
        assert_eq!(paths("use ::child::X;"), ["::child::X"]);
    }

    #[test]
    fn expressions_and_types_are_read_as_imports_are() {
        assert_eq!(
            paths("fn f(x: &crate::a::B) -> super::super::C { child::g(x).child::<u8>() as u8 }"),
            ["crate::a::B", "super::super::C", "child::g"]
        );
        assert_eq!(
            paths("<crate::T as crate::U>::x::y(); crate::v::<crate::W>(); a[0..crate::N]"),
            ["crate::T", "crate::U", "crate::v", "crate::W", "crate::N"]
        );
        assert_eq!(paths("fn f() -> impl Iterator + use<'_> {} crate::MAX * 2"), ["crate::MAX"]);
    }

    #[test]
    fn macro_bodies_count_and_visibilities_do_not() {
        assert_eq!(
            paths("macro_rules! m { ($x:expr) => { use $crate::{a, b}; $crate::c::d($x) } } n! { crate::e }"),
            ["crate::a", "crate::b", "crate::c::d", "crate::e"]
        );
        assert_eq!(paths("pub(in crate::a) struct S(pub(super) u8, pub (crate::B, u8));"), ["crate::B"]);
        let source = "#[macro_export] macro_rules! one { () => {} } macro_rules! two { () => {} }";
        assert_eq!(contents(&tokens(source)).exported_macros, ["one"]);
    }

    #[test]
    fn what_is_for_tests_is_left_out() {
        let kept = "crate::kept";
        for cut in [
            "#[cfg(test)] mod tests { use crate::x; mod more { use crate::y; } }",
            "#[cfg(test)] mod tests;",
            "#[cfg(all(test, not(loom)))] #[allow(unused)] use crate::{x, y};",
            "#[cfg(any(test, all(test, unix)))] pub(in crate::x) fn f<A, B>(x: [u8; { 3 }]) { crate::x() }",
            "#[inline] #[cfg(test)] pub(crate) const unsafe fn f() { crate::x() }",
            "#[cfg(test)] const X: crate::X = if a { crate::b() } else { crate::c() };",
            "#[cfg(test)] impl crate::X for crate::Y { fn f() { crate::x() } }",
            "#[test] fn works() { crate::x() }",
            "fn f() { #[cfg(test)] let x = crate::x(); }",
            "fn f() { #[cfg(test)] if a { crate::x() } else { crate::y() } }",
            "struct S { #[cfg(test)] field: crate::x::X }",
            "match x { #[cfg(test)] A => crate::x(), B => {} }",
            "mod only { #![cfg(test)] use crate::x; }",
        ] {
            assert_eq!(paths(&format!("{cut} use {kept};")), [kept], "{cut}");
        }
        assert_eq!(paths("#![cfg(test)] use crate::x;"), [""; 0]);
        assert_eq!(modules("#[cfg(test)] mod tests; mod own;"), [("own".into(), Body::OwnFile)]);
    }

    #[test]
    fn what_is_not_only_for_tests_stays() {
        for attribute in
            ["not(test)", "any(test, fuzzing)", "feature = \"test\"", "all(not(test), unix)", "any()"]
        {
            assert_eq!(paths(&format!("#[cfg({attribute})] use crate::x;")), ["crate::x"], "{attribute}");
        }
        assert_eq!(
            paths(
                "struct S { #[cfg(test)] a: u8, b: crate::x::X } #[cfg(test)] static A: B = B {}; use crate::y;"
            ),
            ["crate::x::X", "crate::y"]
        );
    }

    #[test]
    fn modules_have_their_place_in_the_file() {
        let source = r#"mod a; mod b { mod c; use super::x; } #[path = "d/e.rs"] pub mod d; use crate::y;"#;
        assert_eq!(
            modules(source),
            [
                ("a".into(), Body::OwnFile),
                ("b".into(), Body::Inline),
                ("b::c".into(), Body::OwnFile),
                ("d".into(), Body::At("d/e.rs".into())),
            ]
        );
        assert_eq!(paths(source), ["b/super::x", "crate::y"]);
    }

    #[test]
    fn a_file_that_only_declares_is_known() {
        let only = |source: &str| contents(&tokens(source)).only_declares;
        assert!(only("//! Docs.\n#![no_std]\nextern crate alloc; #[allow(x)] pub mod a; pub(crate) mod b;"));
        assert!(only(""));
        assert!(!only("mod a; pub use a::X;"));
        assert!(!only("mod a { }"));
        assert!(!only("mod a; const X: u8 = 1;"));
    }
}

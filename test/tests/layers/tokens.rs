//! Rust source as tokens: as much of the lexer as it takes to tell paths from comments, strings and lifetimes.

/// A token of Rust source. Comments and white space are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// An identifier or a keyword. A raw identifier keeps its `r#`, so that it is never taken for a keyword.
    Word(String),
    /// The content of a string literal of any kind, its escapes as they are written.
    Text(String),
    /// A number, a character, a byte or a lifetime.
    Other,
    /// `::`
    PathSep,
    Punct(char),
}

impl Token {
    /// Whether this is the identifier or keyword `word`.
    pub fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Word(own) if own == word)
    }
}

/// The tokens of `source`. Source that the compiler would refuse gives tokens as well, in some way.
pub fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { chars: source.chars().collect(), at: 0 };
    std::iter::from_fn(|| lexer.next()).collect()
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
}

impl Lexer {
    /// The character `ahead` of the next one; NUL past the end.
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.chars.len()
    }

    fn next(&mut self) -> Option<Token> {
        self.skip_blank();
        let first = *self.chars.get(self.at)?;
        Some(match first {
            '"' => self.string(),
            '\'' => self.quote(),
            ':' if self.peek(1) == ':' => {
                self.at += 2;
                Token::PathSep
            }
            '0'..='9' => {
                self.take_word();
                Token::Other
            }
            _ if is_word_char(first) => self.word(),
            _ => {
                self.at += 1;
                Token::Punct(first)
            }
        })
    }

    /// Skips white space and comments.
    fn skip_blank(&mut self) {
        while !self.is_at_end() {
            match (self.peek(0), self.peek(1)) {
                ('/', '/') => {
                    while !self.is_at_end() && self.peek(0) != '\n' {
                        self.at += 1;
                    }
                }
                ('/', '*') => self.skip_block_comment(),
                (blank, _) if blank.is_whitespace() => self.at += 1,
                _ => return,
            }
        }
    }

    /// Skips a block comment and those within it.
    fn skip_block_comment(&mut self) {
        let mut depth = 0;
        while !self.is_at_end() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => {
                    depth += 1;
                    self.at += 2;
                }
                ('*', '/') => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.at += 1,
            }
        }
    }

    fn take_word(&mut self) -> String {
        let start = self.at;
        while is_word_char(self.peek(0)) {
            self.at += 1;
        }
        self.chars[start..self.at].iter().collect()
    }

    /// An identifier, or a literal that begins with a prefix such as `br`.
    fn word(&mut self) -> Token {
        let word = self.take_word();
        let hashes = (0..).take_while(|&ahead| self.peek(ahead) == '#').count();
        match word.as_str() {
            "r" | "br" | "cr" if self.peek(hashes) == '"' => self.raw_string(hashes),
            "b" | "c" if self.peek(0) == '"' => self.string(),
            "b" if self.peek(0) == '\'' => self.quote(),
            "r" if hashes == 1 && is_word_char(self.peek(1)) => {
                self.at += 1;
                Token::Word(format!("r#{}", self.take_word()))
            }
            _ => Token::Word(word),
        }
    }

    /// A string with escapes, from its opening quote on.
    fn string(&mut self) -> Token {
        self.at += 1;
        let start = self.at;
        while !self.is_at_end() && self.peek(0) != '"' {
            self.at += if self.peek(0) == '\\' { 2 } else { 1 };
        }
        let end = self.at.min(self.chars.len());
        self.at += 1;
        Token::Text(self.chars[start.min(end)..end].iter().collect())
    }

    /// A raw string, from its first `#` or its opening quote on.
    fn raw_string(&mut self, hashes: usize) -> Token {
        self.at += hashes + 1;
        let start = self.at;
        while !self.is_at_end() {
            if self.peek(0) == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == '#') {
                break;
            }
            self.at += 1;
        }
        let end = self.at.min(self.chars.len());
        self.at += hashes + 1;
        Token::Text(self.chars[start.min(end)..end].iter().collect())
    }

    /// A character or a lifetime, from its quote on. A lifetime has no second quote after one character.
    fn quote(&mut self) -> Token {
        if self.peek(1) == '\\' {
            self.at += 3;
            while !self.is_at_end() && self.peek(0) != '\'' {
                self.at += 1;
            }
            self.at += 1;
        } else if self.peek(2) == '\'' {
            self.at += 3;
        } else {
            self.at += 1;
            self.take_word();
        }
        Token::Other
    }
}

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of `source`, in one line.
    fn words(source: &str) -> String {
        let words: Vec<_> = tokens(source)
            .into_iter()
            .filter_map(|token| match token {
                Token::Word(word) => Some(word),
                _ => None,
            })
            .collect();
        words.join(" ")
    }

    #[test]
    fn comments_nest_and_are_no_tokens() {
        assert_eq!(words("a /* b /* c */ d */ e // f\n g /// h"), "a e g");
        assert_eq!(words("a /* never closed /* b */"), "a");
    }

    #[test]
    fn strings_hide_what_is_in_them() {
        assert_eq!(words(r#"a "use crate::x; \" y" b"z" c"w" d"#), "a d");
        assert_eq!(words("a r\"use crate::x\\\" b"), "a b");
        assert_eq!(words("a r##\"use crate::x \"# still\"## br#\"y\"# b"), "a b");
        assert_eq!(tokens("\"a\\\"b\""), [Token::Text("a\\\"b".into())]);
        assert_eq!(tokens("\"never closed \\"), [Token::Text("never closed \\".into())]);
    }

    #[test]
    fn characters_and_lifetimes_are_told_apart() {
        assert_eq!(words(r"a 'b' '\'' '\\' '\u{41}' b'c' b'\'' '/' d"), "a d");
        assert_eq!(words("f<'a>(x: &'a T, y: &'static U) where 'a: 'static"), "f x T y U where");
        assert_eq!(words("'outer: loop { '\"' } x"), "loop x");
    }

    #[test]
    fn path_separators_are_one_token() {
        let word = |word: &str| Token::Word(word.into());
        assert_eq!(tokens("a::b:c"), [word("a"), Token::PathSep, word("b"), Token::Punct(':'), word("c")]);
        assert_eq!(words("r#use 0xff_u8 1..two"), "r#use two");
    }
}

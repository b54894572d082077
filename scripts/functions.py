"""The functions of test/functions: small web servers in Python, Node and Java, after those that papers on serverless
platforms measure. Each request has another input, and the answer is checked."""

import shutil
import subprocess
import time

import function_answers as answers
from lib.outcome import Failure
from lib.tree import TOP
from sleepers import PATIENCE, Loading, answer_of

SOURCES = TOP / "test/functions"
CLASSES = TOP / "target/functions/java"
PYTHON = "/usr/bin/python3"
JAVA = ("java", "-XX:+UseSerialGC", "-Xmx96m", "-Xss512k", "-cp", CLASSES)


class Function:
    """A workload of `sleepers`. `needs`: programs on the path, or modules of Python."""

    def __init__(self, name, program, expected, needs=(), after=""):
        self.name, self.words, self.program = name, name, program
        self.expected, self.needs, self.after = expected, needs, after

    def fill(self, root):
        raise Failure("functions have no root of their own")

    def command(self, port):
        return [*self.program, port]

    def request(self, number):
        return b"GET /?seed=%d HTTP/1.0\r\n\r\n" % number

    def is_loading(self, answer):
        return False

    def is_answer(self, answer, number):
        head, _, body = answer.partition(b"\r\n\r\n")
        return b" 200 " in head.partition(b"\r\n")[0] and answers.is_right(self.expected(number), body)


def python(name, file, expected, *needs, after):
    return Function(name, [PYTHON, "-B", SOURCES / "python" / file], expected, (PYTHON, *needs), after)


def node(name, file, expected, after):
    return Function(name, ["node", SOURCES / "node" / file], expected, ("node",), after)


def java(name, main, expected, after):
    return Function(name, [*JAVA, main], expected, ("java", "javac"), after)


# `after`: the application in the evaluation of Sabre (Table 3), or in the suites that it takes them from.
FUNCTIONS = [
    python("fibonacci", "fibonacci.py", answers.fibonacci, after="fibonacci"),
    python("list", "sparse_list.py", answers.sparse_list, after="python list"),
    python("json", "json_rows.py", answers.python_json, after="FunctionBench, json"),
    python("template", "template.py", answers.template, "jinja2", after="chameleon"),
    python("image", "image.py", answers.python_image, "PIL", after="image-processing"),
    python("compress", "compress.py", answers.compress, after="SeBS, compression"),
    python("matmul", "matmul.py", answers.matmul, "numpy", after="matmul"),
    python("video", "video.py", answers.video, "numpy", after="video-processing"),
    python("train", "train.py", answers.train, "numpy", after="model-training"),
    python("predict", "predict.py", answers.predict, "numpy", after="ml-serving"),
    python("path", "path.py", answers.path, after="bfs"),
    python("dna", "dna.py", answers.dna, after="dna-visualization"),
    python("weblog", "weblog.py", answers.weblog, after="FunctionBench, MapReduce"),
    python("aes", "aes.py", answers.aes, "openssl", after="vSwarm, aes"),
    node("node-json", "json_rows.js", answers.node_json, after="FunctionBench, json"),
    node("node-markdown", "markdown.js", answers.markdown, after="SeBS, dynamic-html"),
    node("node-crypto", "crypto.js", answers.crypto, after="vSwarm, auth and aes"),
    node("node-image", "image.js", answers.node_image, after="SeBS, thumbnailer"),
    java("java-json", "JsonRows", answers.java_json, after="FunctionBench, json"),
    java("java-sort", "Sort", answers.sort, after="FunctionBench, float operations"),
    java("java-words", "Words", answers.words, after="FunctionBench, MapReduce"),
]
PACKAGES = {"jinja2": "python3-jinja2", "PIL": "python3-pil", "numpy": "python3-numpy", "openssl": "openssl", "node": "nodejs",
            "java": "default-jdk-headless", "javac": "default-jdk-headless", PYTHON: "python3"}
MODULES = ("jinja2", "PIL", "numpy")


def missing(function):
    """The packages that the function needs and that are not installed."""
    def is_here(need):
        if need in MODULES:
            return subprocess.run([PYTHON, "-c", f"import {need}"], capture_output=True).returncode == 0
        return shutil.which(need) is not None
    return sorted({PACKAGES[need] for need in function.needs if not is_here(need)})


def compile_java():
    CLASSES.mkdir(parents=True, exist_ok=True)
    sources = sorted((SOURCES / "java").glob("*.java"))
    done = subprocess.run(["javac", "-d", CLASSES, *sources], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"javac cannot compile the functions: {done.stderr.strip()}")


def choose(names):
    """The functions of these names (all, if none) that can run, and a sentence for each that cannot."""
    known = {function.name for function in FUNCTIONS}
    if unknown := set(names) - known:
        raise Failure(f"there is no function {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    chosen, left_out = [], []
    for function in FUNCTIONS:
        if not names or function.name in names:
            if lacking := missing(function):
                left_out.append(f"{function.name} is left out: {', '.join(lacking)} is not installed")
            else:
                chosen.append(function)
    if any("javac" in function.needs for function in chosen):
        compile_java()
    return chosen, left_out


def expect_answer(function, port, seed):
    """One request to a server on this host; raises unless the answer is right."""
    try:
        answer = answer_of(("127.0.0.1", port), function.request(seed))
    except TimeoutError:
        raise Failure(f"{function.name} did not answer to {seed} in {PATIENCE} s") from None
    if not function.is_answer(answer, seed):
        raise Failure(f"{function.name} answered {answer[-200:]!r} to {seed}, where {function.expected(seed)} is right")


def check(function, port, seeds):
    """Runs it on this host, without a sandbox, and asks it."""
    words = [str(word) for word in function.command(port)]
    server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                expect_answer(function, port, seeds[0])
                break
            except (ConnectionError, Loading):
                if server.poll() is not None or time.monotonic() > until:
                    said = server.stderr.read()[-300:] if server.poll() is not None else ""
                    raise Failure(f"{function.name} does not start: {said.strip()}") from None
                time.sleep(0.01)
        for seed in seeds[1:]:
            expect_answer(function, port, seed)
    except (OSError, ValueError) as error:
        raise Failure(f"{function.name}: {type(error).__name__}: {error}") from None
    finally:
        server.kill()
        server.wait()
        server.stderr.close()

"""A small web server as functions of a serverless platform are: it has imported much, and needs little of it to answer.

usage: answer.py PORT
"""
import base64
import csv
import datetime
import decimal
import gzip
import hashlib
import http.server
import json
import logging
import random
import re
import ssl
import sys
import tempfile
import uuid

IMPORTED = [base64, csv, decimal, gzip, logging, random, ssl, tempfile, uuid]


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = re.fullmatch(r"/([a-z]+)/(\d+)", self.path)
        what = {"name": found[1], "number": int(found[2])} if found else {}
        what |= {"modules": len(IMPORTED), "time": datetime.datetime.now().isoformat()}
        what["digest"] = hashlib.sha256(self.path.encode()).hexdigest()
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.HTTPServer(("", int(sys.argv[1])), Answer).serve_forever()

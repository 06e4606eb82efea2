"""A web server on loopback that sends what a test tells it to, good or broken."""

import contextlib
import http.server
import threading


class Server:
    """Answers each path with the bytes or the function in `routes`; counts the requests.

    A function gets the request handler and must write the whole answer. Unknown paths are 404.
    `release` lets the functions that wait for it go on; it is set when the server closes.
    """

    def __init__(self, address):
        self.address = address
        self.routes = {}
        self.requests = []
        self.release = threading.Event()

    def url(self, path):
        return f"http://{self.address[0]}:{self.address[1]}{path}"


def whole(handler, body):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def truncated(body):
    """Promise all of the body, send half of it and hang up."""

    def answer(handler, _server):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2])

    return answer


def stalled(body, sent):
    """Send half of the body, set the event `sent`, then be silent until the server closes."""

    def answer(handler, server):
        truncated(body)(handler, server)
        handler.wfile.flush()
        sent.set()
        server.release.wait(60)

    return answer


def together(body, number):
    """Send the body only when `number` requests are waiting for it."""
    barrier = threading.Barrier(number, timeout=60)

    def answer(handler, _server):
        barrier.wait()
        whole(handler, body)

    return answer


@contextlib.contextmanager
def serving():
    """Run a server in a thread for the length of a `with` block."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append(self.path)
            route = server.routes.get(self.path)
            with contextlib.suppress(ConnectionError):  # the reader may be gone: some tests kill it
                if route is None:
                    self.send_error(404, "Not Found")
                elif callable(route):
                    route(self, server)
                else:
                    whole(self, route)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        server = Server(listener.server_address)
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.release.set()
            listener.shutdown()
            thread.join()

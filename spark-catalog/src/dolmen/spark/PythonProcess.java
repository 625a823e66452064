package dolmen.spark;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.lang.ref.WeakReference;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.SocketFactory;

import org.apache.spark.SparkContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import py4j.JavaServer;
import py4j.Py4JPythonClient;
import py4j.PythonClient;
import scala.Function1;

/**
 * The Python process of a SparkContext, in which dolmen runs. It connects as PySpark does to the JVM that starts it: by
 * a loopback port, with a token from its environment. It ends with the JVM, as its standard input is a pipe from there.
 */
public final class PythonProcess {
  private static final String SERVE = "from dolmen.spark.catalog_jar import serve; serve()";
  private static final long START_SECONDS = 300;
  private static PythonProcess current;

  private final SparkContext context;
  private final String python;
  private final JavaServer server;
  private final Process process;
  private final CompletableFuture<Function1<Object, Object>> opener = new CompletableFuture<>();
  private volatile String lastLine = "";

  /** The process of a context, which is started if there is none. A SparkContext is one of a JVM, one after another. */
  static synchronized PythonProcess of(SparkContext context) {
    if (current == null || current.context != context || !current.process.isAlive()) {
      if (current != null) {
        current.process.destroy();
        current.server.shutdown();
      }
      current = new PythonProcess(context);
    }
    return current;
  }

  /** Whether the driver is a Python program, for which a thread of its JVM waits in one of these classes. */
  static boolean isBesideDriver() {
    return Thread.getAllStackTraces().values().stream().flatMap(Arrays::stream).map(StackTraceElement::getClassName)
      .anyMatch(each -> each.startsWith("org.apache.spark.api.python.PythonGatewayServer")
        || each.startsWith("org.apache.spark.deploy.PythonRunner"));
  }

  private PythonProcess(SparkContext context) {
    this.context = context;
    String workers = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    this.python = context.conf().get("spark.pyspark.python", workers);
    byte[] random = new byte[32];
    new SecureRandom().nextBytes(random);
    String token = Base64.getUrlEncoder().encodeToString(random);
    this.server = serve(token);
    ProcessBuilder builder = new ProcessBuilder(python, "-c", SERVE).redirectErrorStream(true);
    Map<String, String> environment = builder.environment();
    String others = environment.get("PYTHONPATH"), own = PythonUtils.sparkPythonPath();
    environment.put("PYTHONPATH", others == null || others.isEmpty() ? own : others + File.pathSeparator + own);
    environment.put("PYSPARK_PYTHON", python);
    environment.put("PYSPARK_PIN_THREAD", "true"); // a call of Spark's must come back on the thread that made it
    environment.put("PYSPARK_GATEWAY_PORT", String.valueOf(server.getListeningPort()));
    environment.put("PYSPARK_GATEWAY_SECRET", token);
    try {
      this.process = builder.start();
    } catch (IOException error) {
      server.shutdown();
      throw new IllegalStateException(sentence("can't be started: " + error.getMessage()), error);
    }
    startDaemon("dolmen-python-output", this::forwardOutput);
  }

  /** Takes calls of Python's on a loopback port. Calls in both directions need the token. */
  private JavaServer serve(String token) {
    PythonClient calls = new AuthenticatedClient(0, InetAddress.getLoopbackAddress(), token);
    JavaServer made = new JavaServer(this, 0, 0, 0, null, calls, token);
    calls.setGateway(made.getGateway());
    calls.setJavaServer(made);
    Thread start = startDaemon("dolmen-python-calls", made::start); // threads that it starts are daemons too
    try {
      start.join();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
    return made;
  }

  /** Calls Python; py4j's own client loses the token when it learns Python's port. */
  private static final class AuthenticatedClient extends PythonClient {
    AuthenticatedClient(int port, InetAddress address, String token) {
      super(null, null, port, address, 30, TimeUnit.SECONDS, SocketFactory.getDefault(), null, true, 0, token);
    }

    @Override
    public Py4JPythonClient copyWith(InetAddress address, int port) {
      PythonClient made = new AuthenticatedClient(port, address, authToken);
      made.setGateway(gateway);
      made.setJavaServer(javaServer);
      return made;
    }
  }

  private static Thread startDaemon(String name, Runnable work) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    thread.start();
    return thread;
  }

  private void forwardOutput() {
    try (BufferedReader lines = process.inputReader()) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        lastLine = line.isBlank() ? lastLine : line;
        System.err.println(line);
      }
    } catch (IOException error) {
      lastLine = error.getMessage();
    }
    opener.completeExceptionally(new IllegalStateException());
  }

  private String sentence(String what) {
    return "dolmen's Python process (" + python + ") " + what + ". Set spark.pyspark.python or PYSPARK_PYTHON to a"
      + " Python that has dolmen: pip install 'dolmen[spark]'";
  }

  /** Called by Python: {@code catalog_jar}. */
  public SparkSession session() {
    return SparkSession.getDefaultSession().get();
  }

  /** Called by Python when it is ready. */
  public void setOpener(Function1<Object, Object> function) {
    opener.complete(function);
  }

  /** A database as a catalog of a session: an object of Python. */
  Object open(SparkSession session, String name, String url) {
    Object catalog;
    try {
      catalog = opener.get(START_SECONDS, TimeUnit.SECONDS).apply(new Object[] {new WeakReference<>(session), name, url});
    } catch (ExecutionException error) {
      throw new IllegalStateException(sentence("ended: " + lastLine), error);
    } catch (TimeoutException | InterruptedException error) {
      throw new IllegalStateException(sentence("is not ready: " + lastLine), error);
    }
    Class<?>[] interfaces = {StagingTableCatalog.class, ProcedureCatalog.class};
    return Proxy.newProxyInstance(DolmenCatalog.class.getClassLoader(), interfaces, (proxy, method, arguments) -> {
      try {
        return method.invoke(catalog, arguments);
      } catch (InvocationTargetException error) {
        if (!process.isAlive()) {
          throw new IllegalStateException("dolmen's Python process ended. Open a new session", error.getCause());
        }
        throw error.getCause();
      }
    });
  }
}

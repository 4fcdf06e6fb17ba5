// Starts a Kafka broker that keeps its metadata at the servers of args[0], with the folder args[1] for its log and the port args[2]; makes a
// topic, has one of the servers killed where args[3] says so, writes to it and reads it back. Any check that does not hold ends it with an error.

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class KafkaRoundTrip {
    public static void main(String[] args) throws Exception {
        Properties file = new Properties();
        String address = "127.0.0.1:" + args[2];
        file.putAll(Map.of(
            "broker.id", "0", "listeners", "PLAINTEXT://" + address, "log.dirs", args[1], "zookeeper.connect", args[0] + "/kafka",
            "offsets.topic.replication.factor", "1", "offsets.topic.num.partitions", "1", "group.initial.rebalance.delay.ms", "0",
            "transaction.state.log.replication.factor", "1", "transaction.state.log.min.isr", "1"));
        // Without Scala's compiler, an object's method is called by its name.
        Class<?> kafka = Class.forName("kafka.server.KafkaServer");
        Object config = Class.forName("kafka.server.KafkaConfig").getMethod("fromProps", Properties.class).invoke(null, file);
        Object time = Class.forName("org.apache.kafka.common.utils.Time").getField("SYSTEM").get(null);
        Object none = Class.forName("scala.Option").getMethod("empty").invoke(null);
        Object broker = kafka.getConstructors()[0].newInstance(config, time, none, false);
        kafka.getMethod("startup").invoke(broker);
        Map<String, Object> client = Map.of("bootstrap.servers", address, "group.id", "group", "auto.offset.reset", "earliest");
        try (Admin admin = Admin.create(client)) {
            admin.createTopics(List.of(new NewTopic("topic", 3, (short) 1))).all().get(60, TimeUnit.SECONDS);
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(client, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 100; number++) {
                producer.send(new ProducerRecord<>("topic", "key" + number, "value" + number)).get(60, TimeUnit.SECONDS);
            }
        }
        if (args.length > 3) {
            System.out.println("kill");
            System.in.read();
            // The controller notes it at the servers.
            try (Admin admin = Admin.create(client)) {
                admin.createTopics(List.of(new NewTopic("another", 1, (short) 1))).all().get(60, TimeUnit.SECONDS);
            }
        }
        List<String> read = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(client, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("topic"));
            for (int round = 0; round < 120 && read.size() < 100; round++) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> read.add(record.value()));
            }
        }
        kafka.getMethod("shutdown").invoke(broker);
        if (read.size() != 100) {
            throw new AssertionError(read.size() + " of 100 records were read");
        }
        System.out.println("100 records were written to a topic and read back");
        System.exit(0);
    }
}

// Values of Java between the process with the tests and the process with the program; see wire.hpp.
// Lists, maps, optionals and tuples are made anew on the other side: a class of the program does not cross.
// Imports are by name: before classes of the program that are called the same.
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.Boolean;
import java.lang.Byte;
import java.lang.Character;
import java.lang.Double;
import java.lang.Float;
import java.lang.Integer;
import java.lang.Long;
import java.lang.Object;
import java.lang.Runtime;
import java.lang.RuntimeException;
import java.lang.Short;
import java.lang.StackOverflowError;
import java.lang.String;
import java.lang.StringBuilder;
import java.lang.System;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.javatuples.Pair;
import org.javatuples.Quartet;
import org.javatuples.Quintet;
import org.javatuples.Triplet;
import org.javatuples.Tuple;
import org.javatuples.Unit;

final class EbftWire {
    static final class Malformed extends RuntimeException {}

    private static DataInputStream in;
    private static OutputStream out;
    static long calls = 0;

    static void open(String[] arguments) throws IOException {
        in = new DataInputStream(new FileInputStream("/proc/self/fd/" + arguments[0]));
        out = new FileOutputStream("/proc/self/fd/" + arguments[1]);
    }

    private static void putAll(DataOutputStream to, String tag, Collection<?> all) throws IOException {
        to.writeUTF(tag);
        to.writeInt(all.size());
        for (Object one : all) put(to, one);
    }

    private static void put(DataOutputStream to, Object value) throws IOException {
        if (value == null) to.writeUTF("null");
        else if (value instanceof Long) { to.writeUTF("long"); to.writeLong((Long) value); }
        else if (value instanceof Integer) { to.writeUTF("int"); to.writeInt((Integer) value); }
        else if (value instanceof Short) { to.writeUTF("short"); to.writeShort((Short) value); }
        else if (value instanceof Byte) { to.writeUTF("byte"); to.writeByte((Byte) value); }
        else if (value instanceof Double) { to.writeUTF("double"); to.writeDouble((Double) value); }
        else if (value instanceof Float) { to.writeUTF("float"); to.writeFloat((Float) value); }
        else if (value instanceof Boolean) { to.writeUTF("boolean"); to.writeBoolean((Boolean) value); }
        else if (value instanceof Character) { to.writeUTF("char"); to.writeChar((Character) value); }
        else if (value instanceof String) {
            to.writeUTF("text");
            String text = (String) value;
            to.writeInt(text.length());
            for (int i = 0; i < text.length(); i++) to.writeChar(text.charAt(i));
        } else if (value instanceof Optional) {
            Optional<?> found = (Optional<?>) value;
            to.writeUTF("optional");
            to.writeBoolean(found.isPresent());
            if (found.isPresent()) put(to, found.get());
        } else if (value instanceof Tuple) putAll(to, "tuple", ((Tuple) value).toList());
        else if (value instanceof List) putAll(to, "list", new ArrayList<Object>((List<?>) value));
        else if (value instanceof Set) putAll(to, "set", new ArrayList<Object>((Set<?>) value));
        else if (value instanceof Map) {
            List<Object> flat = new ArrayList<Object>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                flat.add(entry.getKey());
                flat.add(entry.getValue());
            }
            putAll(to, "map", flat);
        } else throw new Malformed();
    }

    private static List<Object> getAll(DataInputStream from) throws IOException {
        int count = from.readInt();
        if (count < 0 || count > from.available()) throw new Malformed();
        List<Object> all = new ArrayList<Object>();
        for (int i = 0; i < count; i++) all.add(get(from));
        return all;
    }

    private static Object get(DataInputStream from) throws IOException {
        switch (from.readUTF()) {
            case "null": return null;
            case "long": return from.readLong();
            case "int": return from.readInt();
            case "short": return from.readShort();
            case "byte": return from.readByte();
            case "double": return from.readDouble();
            case "float": return from.readFloat();
            case "boolean": return from.readBoolean();
            case "char": return from.readChar();
            case "text": {
                int count = from.readInt();
                if (count < 0 || count > from.available()) throw new Malformed();
                StringBuilder text = new StringBuilder();
                for (int i = 0; i < count; i++) text.append(from.readChar());
                return text.toString();
            }
            case "optional": return from.readBoolean() ? Optional.of(get(from)) : Optional.empty();
            case "list": return getAll(from);
            case "set": return new HashSet<Object>(getAll(from));
            case "map": {
                List<Object> flat = getAll(from);
                Map<Object, Object> map = new HashMap<Object, Object>();
                for (int i = 0; i + 1 < flat.size(); i += 2) map.put(flat.get(i), flat.get(i + 1));
                return map;
            }
            case "tuple": {
                List<Object> parts = getAll(from);
                switch (parts.size()) {
                    case 1: return Unit.fromCollection(parts);
                    case 2: return Pair.fromCollection(parts);
                    case 3: return Triplet.fromCollection(parts);
                    case 4: return Quartet.fromCollection(parts);
                    case 5: return Quintet.fromCollection(parts);
                    default: throw new Malformed();
                }
            }
            default: throw new Malformed();
        }
    }

    static void send(Object value) throws IOException {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        put(new DataOutputStream(body), value);
        ByteArrayOutputStream frame = new ByteArrayOutputStream();
        new DataOutputStream(frame).writeInt(body.size());
        body.writeTo(frame);
        frame.writeTo(out);
        out.flush();
    }

    static Object receive() throws IOException {
        int count = in.readInt();
        if (count < 0 || count > 32 << 20) throw new Malformed();
        byte[] body = new byte[count];
        in.readFully(body);
        return get(new DataInputStream(new ByteArrayInputStream(body)));
    }

    static Object call(Object... arguments) {
        calls++;
        try {
            send(new ArrayList<Object>(Arrays.asList(arguments)));
            return receive();
        } catch (IOException | Malformed | StackOverflowError error) {
            report("failed", "the program has ended");
            return null;
        }
    }

    static void report(String status, String message) {
        System.out.print("{\"status\": \"" + status + "\", \"message\": \"" + message + "\"}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
